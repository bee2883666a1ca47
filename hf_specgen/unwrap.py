"""From what users hold (PEFT, compiled, data-parallel wrappers) to the model whose `generate` does the work."""

from .errors import SpecUnsupportedError


def unwrap(model):
    """The innermost transformers model. Adapters that live in its layers (LoRA and the like) stay active.

    Raises:
        SpecUnsupportedError: prompt-learning adapters (prefix tuning …) live outside the model and would be lost.
    """
    while True:
        if getattr(model, "_orig_mod", None) is not None:  # torch.compile
            model = model._orig_mod
        elif hasattr(model, "peft_config") and hasattr(model, "get_base_model"):
            config = getattr(model, "active_peft_config", None)
            if getattr(config, "is_prompt_learning", False):
                raise SpecUnsupportedError(
                    f"{type(config).__name__} puts its adapter in front of the model, where speculation cannot see it. "
                    "Use an adapter inside the layers (LoRA), or decode without spec_strategy."
                )
            model = model.get_base_model()
        elif type(model).__name__ in ("DistributedDataParallel", "DataParallel"):
            model = model.module
        else:
            return model

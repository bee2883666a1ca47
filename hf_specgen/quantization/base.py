"""What every back end has in common: which packages and devices it needs, and how a checkpoint is loaded through it."""

from __future__ import annotations

from collections.abc import Iterable
from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING, Any

from hf_specgen.errors import SpecUnsupportedError

from .loaded import warn_of_dense_layers

if TYPE_CHECKING:
    import os

    import torch
    from transformers import PreTrainedConfig, PreTrainedModel

    Dtype = torch.dtype | str


class Backend:
    """A dense checkpoint; the others are subclasses. Nothing is imported or loaded before `load`.

    What quantized modules do not survive is never done here, nor may it be done to a loaded model later: `state_dict`
    (and so `save_pretrained`) after the first forward on a CPU, a move to another device, a cast.
    """

    name: str = "dense"
    packages: tuple[str, ...] = ()
    """Requirements, as pip writes them."""
    quantizes = False
    """Whether its layers are quantized in memory."""
    devices: frozenset[str] | None = None
    """Types of devices that it runs on; None for all."""

    def __init__(self, saved: bool = False):
        self.saved = saved
        """Whether the checkpoint is quantized already, and says itself how."""

    def __str__(self) -> str:
        return self.name

    def check(self, devices: Iterable[torch.device] = ()) -> None:
        """Look for the packages and at the devices.

        Raises:
            ImportError: a package is missing, or in another version. The pip line keeps the installed torch.
            SpecUnsupportedError: a device is none that the back end runs on.
        """
        if lacking := [package for package in self.packages if not installed(package)]:
            raise ImportError(f"{self.name} needs {' and '.join(lacking)}: {pip_line(lacking)}")
        for device in devices:
            if self.devices is not None and device.type not in self.devices:
                raise SpecUnsupportedError(
                    f"{self.name} does not run on {device}, only on {', '.join(sorted(self.devices))}. "
                    "Choose another quantization, or another device (draft_device=)."
                )

    def dtype(self, asked: Dtype, device: torch.device) -> Dtype:
        """What to load what is not quantized in; "auto" is the checkpoint's own.

        Raises:
            ValueError: one that the back end does not do.
        """
        return asked

    def config(self, model: PreTrainedConfig, dtype: Dtype, device: torch.device, draft: bool) -> Any:
        """The `quantization_config` for `from_pretrained` where the checkpoint has none of its own.

        Args:
            model: the config of the dense model.
        """
        return None

    def source_kwargs(self, folder: str | os.PathLike[str]) -> dict[str, Any]:
        """The arguments of `from_pretrained` that say what to read."""
        return {"pretrained_model_name_or_path": str(folder)}

    def model_class(self, config: PreTrainedConfig) -> type:
        """The class that a checkpoint names, if transformers has it and it generates; else AutoModelForCausalLM."""
        import transformers

        named = getattr(transformers, (config.architectures or [""])[0], transformers.AutoModelForCausalLM)
        generates = isinstance(named, type) and issubclass(named, transformers.GenerationMixin)
        return named if generates else transformers.AutoModelForCausalLM

    def quantize_head(self, model: PreTrainedModel) -> None:
        """Replace a head that is still dense by a quantized one. A tied embedding stays dense."""

    def mend(self, model: PreTrainedModel) -> None:
        """Replace what the device's kernels could not run, before the first forward."""

    def load(
        self,
        folder: str | os.PathLike[str],
        device_map: str | dict[str, Any] | None,
        *,
        device: torch.device,
        dtype: Dtype = "auto",
        draft: bool = False,
        **kwargs: Any,
    ) -> PreTrainedModel:
        """Load a checkpoint, in evaluation mode.

        Args:
            device: where most of it will be; decides the dtype. `draft`: its head is quantized too.
            kwargs: for `from_pretrained`. Code from the checkpoint runs only with `trust_remote_code=True`.
        """
        from transformers import AutoConfig

        dtype, source = self.dtype(dtype, device), self.source_kwargs(folder)
        kwargs.setdefault("trust_remote_code", False)  # else transformers asks at the terminal
        known = {name: kwargs[name] for name in ("revision", "trust_remote_code") if name in kwargs}
        config = AutoConfig.from_pretrained(**source, **known)
        quantization = None if self.saved else self.config(config, dtype, device, draft)
        if quantization is not None:
            kwargs["quantization_config"] = quantization
        model_class = self.model_class(config)
        model = model_class.from_pretrained(**source, dtype=dtype, device_map=device_map, **kwargs).eval()
        if draft:
            self.quantize_head(model)
        self.mend(model)
        if self.quantizes:
            warn_of_dense_layers(model, self.name)
        return model


def refuse_float64(name: str, asked: Dtype) -> None:
    """Raises ValueError: no kernel of four bits, nor of torchao, has this dtype."""
    if str(asked).removeprefix("torch.") == "float64":
        raise ValueError(f"{name} does not work in float64. Choose bfloat16, float16 or float32 (dtype=).")


def installed(requirement: str) -> bool:
    """Whether a distribution is there, in a version that fits."""
    from packaging.requirements import Requirement

    wanted = Requirement(requirement)
    try:
        return wanted.specifier.contains(version(wanted.name), prereleases=True)
    except PackageNotFoundError:
        return False


def pip_line(packages: list[str]) -> str:
    """With the installed torch as a bound: pip then picks versions that keep it."""
    import torch

    wanted = [*packages, f"torch=={torch.__version__.partition('+')[0]}"]
    return "pip install " + " ".join(f'"{package}"' for package in wanted)


def replace_head(model: PreTrainedModel, head: torch.nn.Module) -> None:
    """Put a head of its own in place of the model's, which may have been tied to the embedding.

    From then on the model's config says that they are two: nothing ties them again, and a saved model loads as it is.
    """
    model.set_output_embeddings(head.eval())
    model.config.get_text_config(decoder=True).tie_word_embeddings = False
    model.config.tie_word_embeddings = False


def dense_head(model: PreTrainedModel) -> torch.nn.Linear | None:
    """The model's head if it is an ordinary Linear with weights that are there, else None."""
    import torch

    head = model.get_output_embeddings()
    plain = type(head) is torch.nn.Linear and type(head.weight.data) is torch.Tensor
    return head if plain and head.weight.device.type != "meta" else None

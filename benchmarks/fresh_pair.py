"""A pair in the shape of a real one with fresh weights, for machines that no model can be brought to.

    python benchmarks/fresh_pair.py FOLDER

writes FOLDER/target and FOLDER/draft. The draft is the target's first layers. Their step times are a real pair's; how
often they agree is not.
"""

import argparse
from pathlib import Path

import torch
from toy_drafts import part_of
from transformers import AutoModelForCausalLM, AutoTokenizer, Qwen2Config

from hf_specgen.demo import PAIR


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--hidden-size", type=int, default=1536, help="default: of Qwen2.5-1.5B")
    parser.add_argument("--layers", type=int, default=28)
    parser.add_argument("--draft-layers", type=int, default=4)
    parser.add_argument("--vocab-size", type=int, default=151936)
    args = parser.parse_args()
    tokenizer = AutoTokenizer.from_pretrained(PAIR / "target")
    config = Qwen2Config(
        vocab_size=args.vocab_size,
        hidden_size=args.hidden_size,
        intermediate_size=args.hidden_size * 35 // 6,
        num_hidden_layers=args.layers,
        num_attention_heads=max(1, args.hidden_size // 128),
        num_key_value_heads=2 if args.hidden_size >= 512 else 1,
        tie_word_embeddings=True,
        bos_token_id=tokenizer.eos_token_id,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.eos_token_id,
    )
    torch.manual_seed(0)
    target = AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16)
    for name, model in (("target", target), ("draft", part_of(target, list(range(args.draft_layers))))):
        model.save_pretrained(args.folder / name)
        tokenizer.save_pretrained(args.folder / name)


if __name__ == "__main__":
    main()

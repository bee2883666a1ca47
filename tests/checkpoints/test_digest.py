"""Checkpoints are told apart by a few pieces of their weights."""

import json
import shutil

from safetensors.torch import load_file, save_file
from toys import tiny

from hf_specgen.checkpoints.digest import BYTES, PIECES, digest_of, weight_files


def of(folder):
    return digest_of(weight_files(folder))


def test_copies_are_equal_and_fine_tunes_are_not(tmp_path):
    tiny().save_pretrained(tmp_path / "base")
    shutil.copytree(tmp_path / "base", tmp_path / "copy")
    shutil.copytree(tmp_path / "base", tmp_path / "tuned")
    (tmp_path / "copy" / "README.md").write_text("a copy")
    tensors = load_file(tmp_path / "tuned" / "model.safetensors")
    tensors["model.layers.1.mlp.up_proj.weight"] += 1e-3  # one matrix of many
    save_file(tensors, tmp_path / "tuned" / "model.safetensors", metadata={"format": "pt"})
    assert of(tmp_path / "base") == of(tmp_path / "copy") != of(tmp_path / "tuned")
    assert len(of(tmp_path / "base")) == 16


def test_shards_all_count(tmp_path):
    tiny().save_pretrained(tmp_path, max_shard_size="40KB")
    files = weight_files(tmp_path)
    assert len(files) > 2 and files == sorted(tmp_path.glob("model-*.safetensors"))
    assert len({digest_of(files), digest_of(files[:-1]), digest_of(files[1:])}) == 3


def test_a_folder_without_weights_has_none(tmp_path):
    (tmp_path / "config.json").write_text(json.dumps({}))
    assert weight_files(tmp_path) == []
    (tmp_path / "model.gguf").write_bytes(b"short")
    assert weight_files(tmp_path) == [tmp_path / "model.gguf"] and len(of(tmp_path)) == 16


def test_the_first_and_the_last_bytes_count(tmp_path):
    content = bytes(range(251)) * (PIECES * BYTES // 100)
    digests = set()
    for at in (None, 0, len(content) - 1):
        changed = bytearray(content)
        if at is not None:
            changed[at] ^= 1
        (tmp_path / "model.safetensors").write_bytes(changed)
        digests.add(of(tmp_path))
    assert len(digests) == 3

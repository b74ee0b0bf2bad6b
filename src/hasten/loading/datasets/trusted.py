"""What is known by name of code that is not the user's: which of it always does the same, and which never may.

Lists and their look-up; nothing is imported to be recognised. Whatever stands in none of the lists is in doubt.
"""

from __future__ import annotations

import functools
import re


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


STANDARD = _words(
    """
    abc argparse array ast base64 binascii bisect builtins bz2 calendar cmath codecs collections colorsys
    configparser contextlib copy copyreg csv dataclasses datetime decimal difflib enum errno fnmatch fractions
    functools genericpath glob gzip hashlib heapq html inspect io itertools json keyword linecache locale logging
    lzma marshal math mimetypes ntpath numbers operator os pathlib pickle pickletools platform posix posixpath
    pprint quopri re reprlib shlex shutil sqlite3 stat statistics string struct sys tarfile tempfile textwrap
    tokenize tomllib traceback types typing unicodedata warnings weakref wave xml zipfile zlib zoneinfo
    """
)
"""Modules of the standard library that give the same for the same, but for what `is_doubtful_name` tells."""

LIBRARIES = _words(
    """
    numpy torch torchvision PIL cv2 scipy skimage pandas pyarrow simplejpeg turbojpeg imageio tifffile imagecodecs
    rawpy nibabel pydicom SimpleITK h5py zarr lmdb msgpack yaml orjson soundfile torchaudio torchcodec decord av
    typing_extensions
    """
)
"""Libraries that do, again but for those names. Their code is not read; the user's calls of it are."""

READ_ANYWAY = ("torchvision.datasets.", "torch.utils.data.")
"""Datasets: short, in Python, and made to be inherited from. Their code is read like the user's."""

SETTLED_FUNCTIONS = frozenset(
    ("torchvision.datasets.folder.default_loader", "torchvision.datasets.folder.pil_loader")
)
"""Functions that would be read but need not be."""

SETTLED_TRANSFORMS = _words(
    """
    CenterCrop ClampBoundingBoxes Compose ConvertBoundingBoxFormat ConvertImageDtype FiveCrop Grayscale Identity
    Lambda LinearTransformation Normalize PILToTensor Pad RGB Resize TenCrop ToDtype ToImage ToPILImage
    ToPureTensor ToTensor
    """
)
"""Transforms of torchvision that draw nothing, provided that what they hold is settled too."""

ENLARGING = frozenset(
    ("ConvertImageDtype", "Normalize", "PILToTensor", "ToDtype", "ToImage", "ToPureTensor", "ToTensor")
)
"""Transforms that are quickly done and leave an image no smaller than it was: not worth keeping what they make."""

_DOUBTFUL = re.compile(
    r"(^|_)rand|random|Rand|shuffle|permutation|permuted|Permutation|jitter|Jitter|augment|Augment|[dD]rop(out|path)|bernoulli|multinomial"
    r"|[nN]oise|mix_?up|MixUp|Mixup|cut_?mix|CutMix|AugMix|Cutmix|[sS]eed|(^|_)rng|RNG|Elastic|elastic|uuid|gumbel|dither|effect_spread|fractional_max_pool"
)
_DOUBTFUL_WHOLE = _words(
    """
    Generator RandomState choice choices default_generator sample normal normal_ uniform uniform_ exponential_
    cauchy_ geometric_ log_normal_ poisson rvs standard_normal lognormal binomial laplace vonmises GaussianBlur JPEG rrelu
    randbytes now today utcnow getmtime getatime st_mtime st_atime times clock_gettime getpid getppid get_ident
    get_worker_info get_rank current_process environ getenv getcwd urlopen input stdin cuda mps xpu eval exec
    compile __import__ import_module globals locals vars setattr delattr id hash _getframe currentframe stack
    """
)


@functools.cache
def is_doubtful_name(name: str) -> bool:
    """Whether a name speaks of chance, of time, of this process, or of code that cannot be read."""
    return name in _DOUBTFUL_WHOLE or _DOUBTFUL.search(name) is not None


@functools.cache
def is_trusted_module(name: str) -> bool:
    """Whether what is defined in a module of this name is trusted without being read."""
    if f"{name}.".startswith(READ_ANYWAY):
        return False
    return name.partition(".")[0] in STANDARD | LIBRARIES

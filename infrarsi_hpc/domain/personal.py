"""What in a piece of text is a person's own: secrets, addresses, names in paths, machines one logs in to.

Privacy comes before use: what is in doubt counts as personal, since its owner sees what was left out and can say it
otherwise, while what was published cannot be called back.

Covers: tokens by their shape and by the name they stand under, mail addresses, URLs with a password, folders of
persons and groups, `~name`, names that are known from elsewhere, login hosts, options that name an account.
Does not cover: a name that looks like any other word and stands nowhere in a path; numbers that mean something.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from itertools import pairwise

_SECRET_NAME = re.compile(
    r"TOKEN|KEY|SECRET|PASSW(?:OR)?D|PASSPHRASE|(?:^|_)PASS(?:$|_)|(?:^|_)PWD(?:$|_)|CREDENTIAL|(?:^|_)AUTH(?:$|_)|COOKIE"
    r"|PRIVATE|BEARER|(?:^|_)PAT(?:$|_)|(?:^|_)DSN(?:$|_)|WEBHOOK",
    re.IGNORECASE,
)
#: Names that only sound like secrets.
_NO_SECRET = re.compile(
    r"TOKENIZERS_PARALLELISM|(?:NCCL_IB|UCX_IB|FI_\w+)_PKEY|UCX_IB_PKEY|\w*KEYBOARD\w*", re.IGNORECASE
)
_IDENTITY_NAME = re.compile(
    r"(?:USER|USERNAME|LOGNAME|HOME|OLDPWD|PWD|EMAIL|MAIL|MAILTO|HOSTNAME|MASTER_ADDR)\Z|(?:\w+_)?(?:USER|USERNAME|EMAIL|ENTITY)\Z"
    r"|(?:SBATCH|SLURM|SALLOC|SRUN)_(?:\w+_)?(?:ACCOUNT|QOS|RESERVATION|WCKEY|MAIL\w*|COMMENT)\Z|SSH_\w+\Z|GIT_(?:AUTHOR|COMMITTER)_\w+\Z",
    re.IGNORECASE,
)
_ASSIGNMENT = re.compile(r"(?<![\w$-])([A-Za-z_]\w*)\s*=|\bsetenv\s+(\w+)")
_SECRET_OPTION = re.compile(
    r"--?(?:token|api-?key|key|secret|password|passwd|pass|credentials?|auth)(?:[\s=]|\Z)|\bauthorization\s*:|\bbearer\s+\S",
    re.IGNORECASE,
)
_IDENTITY_OPTION = re.compile(
    r"--(?:account|qos|mail-user|reservation|wckey|uid|gid|comment)(?:[\s=]|\Z)|(?:\A|\s)-A\s*\w|(?:sbatch|srun|salloc)\b.*\s-[qU]\s*\w"
)
_TOKEN_SHAPES = re.compile(
    r"(?<![A-Za-z0-9])(?:hf_[A-Za-z0-9]{6,}|api_org_\w{8,}|gh[opsur]_\w{6,}|github_pat_\w{6,}|glpat-[\w-]{6,}|sk-[\w-]{6,}|pk-[\w-]{8,}"
    r"|xox[abeoprs]-[\w-]{6,}|A[KS]IA[A-Z0-9]{8,}|AIza[\w-]{8,}|ya29\.[\w-]{6,}|nvapi-[\w-]{6,}|npm_\w{8,}|pypi-[\w-]{8,}|dop_v1_\w{6,}"
    r"|SG\.[\w-]{6,}|r8_\w{8,}|gsk_\w{8,}|wandb_\w{8,}|local-[0-9a-f]{16,}|eyJ[\w-]{6,}(?:\.[\w-]+)*)|-----BEGIN|ssh-(?:rsa|ed25519)\s"
)
_URL_WITH_PASSWORD = re.compile(r"[A-Za-z][\w+.-]*://[^\s/@]+@")
_IMAGE_DIGEST = re.compile(r"@?sha256:[0-9a-f]{64}\b")
_LONG_HEX = re.compile(
    r"(?<![A-Za-z0-9])[0-9A-Fa-f]{32,}(?![A-Za-z0-9])|\b[0-9A-Fa-f]{8}(?:-[0-9A-Fa-f]{4}){3}-[0-9A-Fa-f]{12}\b"
)
_LONG_RUN = re.compile(r"(?<![\w./$}-])[A-Za-z0-9+][A-Za-z0-9+/_-]{23,}={0,2}")
_MAIL = re.compile(r"[\w.%+'-]+@[A-Za-z0-9][\w.-]*")
_LOGIN_HOST = re.compile(
    r"\b(?:login|head|submit|gateway|gw|jump|bastion|proxy|frontend|fe)[\w-]*(?:\.[A-Za-z][\w-]*)+\b|\bssh\s+\S|(?://|@|\A)\d{1,3}(?:\.\d{1,3}){3}\b",
    re.IGNORECASE,
)
_PHONE = re.compile(r"\bext\.?\s*\d{2,}|(?<!\w)\+\d{1,3}[\s()/-]*\d[\d\s()/-]{6,}\d", re.IGNORECASE)

_HOMES = "home|homes|users|user|people|staff|students|u"
_SCRATCHES = (
    "scratch\\w*|work|workspace|nobackup|tmpwork|flash|fast|lustre|gpfs|beegfs|weka|vast|fsx|nfs|data|datasets|storage"
    "|store|persist\\w*"
)
_GROUPS = "projects?|proj|groups?|grp|labs?|teams?|pi|allocations?|archive"
#: Folders for everybody at the top of a machine.
_TEMPORARY = re.compile(r"(?:tmp|local\w*|nvme\w*|ssd\w*|mnt|media)\Z", re.IGNORECASE)
_ROOT = re.compile(rf"(?:{_HOMES}|{_SCRATCHES}|{_GROUPS})\Z", re.IGNORECASE)
_HOME_ROOT = re.compile(rf"(?:{_HOMES})\Z", re.IGNORECASE)
_GROUP_ROOT = re.compile(rf"(?:{_GROUPS})\Z", re.IGNORECASE)
#: One absolute path inside a text; it ends where a shell or a list of paths would end it.
_PATH = re.compile(r"(?<![\w.$}~])(?:/[\w.@%+=~-]+)+/?|(?<=[\w}])(?:/[\w.@%+=~-]+){2,}")
_TILDE_NAME = re.compile(r"(?<![\w/.$}~])~([A-Za-z_][\w.-]*)")
#: Parts of paths that name no person: what installers, sites and packages call their folders.
_PLAIN = re.compile(
    r"\.?(?:shared?|public|common|software|sw|apps?|applications|modules?|modulefiles|containers?|images?|sif|sqsh|data|datasets?|models?"
    r"|checkpoints|scratch|tmp|temp|cache|local|opt|bin|sbin|lib\d*|libexec|etc|include|usr|var|share|src|envs?|venvs?|virtualenvs|py\w*|python[\d.]*"
    r"|conda|(?:mini|ana)(?:conda|forge)\d*|mambaforge|micromamba|mamba|spack|easybuild|eb|nix|cuda[\w.-]*|nccl[\w.-]*|hpc\w*|slurm[\w.-]*"
    r"|torch\w*|huggingface|hf|hub|wandb|triton|infrarsi[\w.-]*|results?|runs?|logs?|jobs?|code|repos?|git|projects?|work|profile|activate"
    r"|config|current|latest|default|site|stable|test|setup|env|init|tools|scripts?|[\d.]+|v\d[\w.]*|[\w-]+\.(?:sif|sqsh|sh|py|img|toml|tar|gz))\Z",
    re.IGNORECASE,
)
#: Words too plain to be looked for outside of paths, whoever's name they are.
_WORDS = """gpu gpus cpu cpus node nodes slurm admin root user users group default normal standard long short debug test
    train training research cluster main all low high batch home work scratch data lab hpc support help mail info cuda
    nvidia module load source the and for set export path bash python purge true false none"""
COMMON_WORDS = frozenset(_WORDS.split())


def secret_name(name: str) -> bool:
    """Whether a variable of this name holds a secret, by its name alone."""
    return _SECRET_NAME.search(name) is not None and _NO_SECRET.fullmatch(name) is None


def identity_name(name: str) -> bool:
    """Whether a variable of this name says who or where somebody is."""
    return _IDENTITY_NAME.match(name) is not None


def names_in(text: str) -> set[str]:
    """Names of persons and groups that a text gives away: in paths, after `~`, before an `@`."""
    text = _IMAGE_DIGEST.sub("", text)
    found = {match.group(1) for match in _TILDE_NAME.finditer(text)}
    found |= {name for path in _PATH.findall(text) for name in _persons(path)}
    for mail in _MAIL.findall(text):
        local = mail.split("@")[0]
        found |= {local, *re.split(r"[._+-]", local)}
    return {name for name in found if len(name) >= 3 and name.lower() not in COMMON_WORDS and not name.isdigit()}


def rewritten(text: str) -> str:
    """The text with every person's folder replaced by `$HOME` or `$USER`; what cannot be is left, and judged."""
    text = _TILDE_NAME.sub("$HOME", text)
    return _PATH.sub(lambda match: _own_path(match.group(0)), text)


def reasons(text: str, names: Iterable[str] = (), hosts: Iterable[str] = ()) -> list[str]:
    """Why a text must not be published as it is; empty: nothing found.

    `names` are words that are known to be somebody's, `hosts` machines and domains.
    """
    bare = _IMAGE_DIGEST.sub("", text)
    found = []
    if _TOKEN_SHAPES.search(bare) or _LONG_HEX.search(bare) or any(_looks_random(r) for r in _LONG_RUN.findall(bare)):
        found.append("it looks like a token")
    if _URL_WITH_PASSWORD.search(bare):
        found.append("it holds a name or password in a URL")
    elif _MAIL.search(bare):
        found.append("it holds an address")
    assigned = [first or second for first, second in _ASSIGNMENT.findall(bare)]
    if any(secret_name(name) for name in assigned) or _SECRET_OPTION.search(bare):
        found.append("it sets a secret")
    if any(identity_name(name) for name in assigned) or _IDENTITY_OPTION.search(bare):
        found.append("it names an account, a reservation or a person")
    if _TILDE_NAME.search(bare) or any(_persons(path) for path in _PATH.findall(bare)):
        found.append("it names a person's or a group's folder")
    if _LOGIN_HOST.search(bare) or any(host and host.lower() in bare.lower() for host in hosts):
        found.append("it names a machine or a domain of the site's")
    if _PHONE.search(bare):
        found.append("it looks like a telephone number")
    if not found and any(has_word(bare, name) for name in names):
        found.append("it holds a name that stands elsewhere as a person's, an account's or a reservation's")
    return found


def has_word(text: str, word: str) -> bool:
    """Whether a word stands in a text by itself; `_` and `-` end a word."""
    return re.search(rf"(?<![A-Za-z0-9]){re.escape(word)}(?![A-Za-z0-9])", text, re.IGNORECASE) is not None


def domain_of(host: str) -> str:
    """The domain of a host's name without its first label, where at least two labels are left."""
    rest = host.partition(".")[2]
    return rest if "." in rest else ""


def _looks_random(run: str) -> bool:
    """Whether a long run of letters and digits is a key rather than words: upper, lower and digits, mixed all over."""
    letters = re.sub(r"[/_+=-]", "", run)
    if sum(any(test(c) for c in letters) for test in (str.isupper, str.islower, str.isdigit)) < 3:
        return False
    kinds = ["d" if c.isdigit() else "U" if c.isupper() else "l" for c in letters]
    changes = sum(a != b for a, b in pairwise(kinds))
    return changes >= len(letters) / 4


def _parts(path: str) -> list[str]:
    return [part for part in path.split("/") if part]


def _persons_at(parts: list[str]) -> list[int]:
    """Indices of the parts that name a person or a group."""
    found = []
    for i, part in enumerate(parts[:-1]):
        is_root = _ROOT.match(part) or (_TEMPORARY.match(part) and (i == 0 or parts[i - 1] == "var"))
        following = parts[i + 1]
        if not is_root or _ROOT.match(following) or following.startswith("$"):
            continue
        if not _PLAIN.match(following) or _HOME_ROOT.match(part):
            found.append(i + 1)
    return found


def _persons(path: str) -> list[str]:
    """Names in one path: the person's part, and the part behind it where that may be a person of a group."""
    parts = _parts(path)
    found = []
    for at in _persons_at(parts):
        found += [part for part in parts[at : at + 2] if part == parts[at] or not _PLAIN.match(part)]
    return found


def _own_path(path: str) -> str:
    """One path with its person's part replaced, or as it is where that would leave another name in it."""
    parts = _parts(path)
    persons = _persons_at(parts)
    if not persons:
        return path
    # a home wherever it is mounted; else the first folder of a person's
    at = next((i for i in reversed(persons) if _HOME_ROOT.match(parts[i - 1])), persons[0])
    root, tail = parts[at - 1], parts[at + 1 :]
    if len(parts[at]) == 1 and tail and tail[0].startswith(parts[at]):
        tail = tail[1:]
    if _GROUP_ROOT.match(root) or (tail and not _PLAIN.match(tail[0])):
        return path
    begin = ["$HOME"] if _HOME_ROOT.match(root) else ["", *parts[:at], "$USER"]
    return "/".join([*begin, *tail]) + ("/" if path.endswith("/") and tail else "")

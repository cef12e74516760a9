"""Which field of the site profile does a site's own rule speak of? Submit plugins refuse in words of their own.

Options are named exactly (`Use --mem-per-cpu`), subjects in prose (`you may not submit without an account`).
"""

from __future__ import annotations

import re

#: An option that this sbatch does not know, or that a plugin complains of, and the field that sends it.
OPTIONS = (
    (re.compile(r"--?mem\b|--mem-per-(?:cpu|gpu)|--mem[= ]"), "request.memory"),
    (re.compile(r"--wckey"), "request.wckey"),
    (re.compile(r"--cpus-per-gpu"), "request.cpus_per_gpu"),
    (re.compile(r"--gres|--gpus|--tres-per|(?<!\w)-G\b"), "request.gpu"),
    (re.compile(r"--account|(?<!\w)-A\b"), "user.account"),
    (re.compile(r"--qos|(?<!\w)-q\b"), "user.qos"),
    (re.compile(r"--time|(?<!\w)-t\b"), "partition.max_time"),
    (re.compile(r"--constraint|(?<!\w)-C\b"), "partition.constraint"),
    (re.compile(r"--reservation"), "partition.reservation"),
    (re.compile(r"--exclusive"), "request.exclusive"),
    (re.compile(r"--nodes|(?<!\w)-N\b"), "partition.num_nodes"),
    (re.compile(r"--partition|(?<!\w)-p\b"), "partition.name"),
    (re.compile(r"--clusters?|(?<!\w)-M\b"), "scheduler.cluster"),
    (re.compile(r"--container"), "launch.image"),
    (re.compile(r"--mail"), "user.mail_user"),
    (re.compile(r"--array"), "limits.array_size"),
)

#: What a site's own rules speak of, most telling first.
SUBJECTS = tuple(
    (re.compile(words, re.IGNORECASE), field)
    for words, field in (
        (r"w ?ckey", "request.wckey"),
        (r"quota", "storage.scratch"),
        (r"\b(?:memory|mem|ram)\b|min_mem", "request.memory"),
        (r"(?:cores?|cpus?|threads?) (?:per|for each|for every) gpu|(?:cores?|cpus?)[- ]to[- ]gpu|cpu/gpu ratio",
         "request.cpus_per_gpu"),
        (r"(?:\bno|missing|without|invalid|unknown|wrong|specif\w+|valid|not|choose|set|set an?|expired|your) .{0,24}"
         r"\b(?:account|project|allocation|group account)\b|\b(?:account|project|allocation)s? .{0,40}"
         r"(?:not|invalid|required|missing|expired|unknown|does|exhausted|overdrawn|over ?spent)", "user.account"),
        (r"\bqos\b|quality of service", "user.qos"),
        (r"\b(?:wall ?(?:time|clock)?|time ?limit|run ?time|time has not|time request\w*|requested time)\b",
         "partition.max_time"),
        (r"(?:\bno|without|missing|cannot find|not (?:request|ask|specify)\w*|(?:request|ask for) at least) .{0,24}"
         r"\bgpus?\b(?! (?:partition|queue|node))", "request.gpu"),
        (r"gpus?.{0,40}(?:must|should|need\w*|requires?|only|use)\b.{0,30}\bpartition|"
         r"requires? an? .{0,20}gpu partition",
         "partition.name"),
        (r"(?:choose|specify|select|list|use|given?|missing|no|invalid|unknown) .{0,24}\b(?:partition|queue)\b",
         "partition.name"),
        (r"partition .{0,60}(?:not valid|does not exist|not exist|closed|not allowed|required|must be)",
         "partition.name"),
        (r"\bgpus?\b|\bgres\b|accelerators?|\bdcu\b|\bmig\b", "request.gpu"),
        (r"constraint|features?", "partition.constraint"),
        (r"reservation", "partition.reservation"),
        (r"exclusive|whole nodes?|shared nodes?|node sharing", "request.exclusive"),
        (r"\bnodes?\b", "partition.num_nodes"),
        (r"\b(?:cpus?|cores?|tasks?|processors)\b", "partition.cpus_per_node"),
        (r"\b(?:account|project|allocation|budget|credits?|balance)\b", "user.account"),
        (r"partition|queue", "partition.name"),
        (r"\bmail\b", "user.mail_user"),
        (r"array", "limits.array_size"),
        (r"\btime\b|hours|minutes", "partition.max_time"),
    )
)  # fmt: skip

#: A form that a rule asks for in so many words, and the line of the profile that sends it.
WANTED = tuple(
    (re.compile(words, re.IGNORECASE), setting)
    for words, setting in (
        (r"(?:use|set|specify|requires?) (?:the )?(?:option )?--mem-per-cpu|--mem-per-cpu is (?:required|needed)",
         'request.memory = "mem-per-cpu"'),
        (r"(?:use|set|specify|requires?) (?:the )?(?:option )?--mem-per-gpu|--mem-per-gpu is (?:required|needed)",
         'request.memory = "mem-per-gpu"'),
        (r"(?:use|set|specify|requires?) (?:the )?(?:option )?--mem\b(?!-)", 'request.memory = "mem"'),
        (r"(?:do not|don't|must not|cannot|may not) (?:specify|request|set|use) (?:any )?(?:memory|mem|--mem)\b(?!-)",
         'request.memory = "none"'),
        (r"--gpus-per-node", 'request.gpu = "gpus-per-node"'),
        (r"--gpus-per-task", 'request.gpu = "gpus-per-task"'),
        (r"--gres=gpu:[<\[{]?[A-Za-z]\w*[>\]}]?:|gpu type|type of gpu", 'request.gpu = "typed-gres"'),
        (r"--gres", 'request.gpu = "gres"'),
        (r"(?:use|add|specify|need\w*|requires?|with) (?:the )?(?:option )?--exclusive", "request.exclusive = true"),
    )
)  # fmt: skip

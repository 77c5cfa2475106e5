#!/usr/bin/env python3
"""Keep the processes of one API tier together: all run, or none.

supervise.py --dir DIR [--watch-pid PID] -- COMMAND... [--- COMMAND...]...

Each command logs to DIR/<program>.log. The supervisor ends all of them when one ends, when it gets SIGTERM
or SIGINT, and when process PID goes. If the supervisor itself is killed, the kernel ends them (PDEATHSIG).
"""

import argparse
import ctypes
import os
import select
import signal
import subprocess
import sys

PR_SET_PDEATHSIG = 1


def split(words):
    """Commands between the --- marks."""
    commands = [[]]
    for word in words:
        if word == "---":
            commands.append([])
        else:
            commands[-1].append(word)
    return [command for command in commands if command]


def start(command, directory, parent):
    """Start one command that dies with this process."""
    libc = ctypes.CDLL(None, use_errno=True)

    def die_with_parent():
        libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:
            os._exit(1)

    name = os.path.basename(command[0])
    with open(os.path.join(directory, name + ".log"), "ab") as log:
        return subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, preexec_fn=die_with_parent)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--dir", required=True)
    parser.add_argument("--watch-pid", type=int, default=0)
    parser.add_argument("words", nargs=argparse.REMAINDER)
    options = parser.parse_args()
    words = options.words[1:] if options.words[:1] == ["--"] else options.words

    poller = select.poll()
    if options.watch_pid:
        try:
            poller.register(os.pidfd_open(options.watch_pid), select.POLLIN)
        except ProcessLookupError:
            return 0
    wake_read, wake_write = os.pipe()
    os.set_blocking(wake_write, False)
    signal.set_wakeup_fd(wake_write)
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, lambda *_: None)
    poller.register(wake_read, select.POLLIN)

    children = [start(command, options.dir, os.getpid()) for command in split(words)]
    for child in children:
        poller.register(os.pidfd_open(child.pid), select.POLLIN)
    try:
        poller.poll()  # whatever happens first ends all of it
    finally:
        for child in reversed(children):
            child.kill()
        for child in children:
            child.wait()
    return 0


if __name__ == "__main__":
    sys.exit(main())

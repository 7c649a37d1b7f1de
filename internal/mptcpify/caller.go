package mptcpify

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// namespaceID identifies a network namespace.
type namespaceID struct{ dev, ino uint64 }

func namespacePath(tid uint32) string {
	return "/proc/" + strconv.FormatUint(uint64(tid), 10) + "/ns/net"
}

// namespaceOf returns the network namespace of a thread. It fails for threads that the kernel hides from us: those
// outside our pid namespace (tid 0), those of another user, and those that are not dumpable.
func namespaceOf(tid uint32) (namespaceID, error) {
	var st unix.Stat_t
	if err := statQuickly(namespacePath(tid), &st); err != nil {
		return namespaceID{}, fmt.Errorf("network namespace of thread %d: %w", tid, err)
	}
	return namespaceID{dev: st.Dev, ino: st.Ino}, nil
}

// executableOf returns the path of the file that a thread executes, even if the file was replaced meanwhile.
func executableOf(tid uint32) (string, error) {
	path, err := os.Readlink("/proc/" + strconv.FormatUint(uint64(tid), 10) + "/exe")
	return strings.TrimSuffix(path, " (deleted)"), err
}

// userOf returns the effective user and group of a thread. They own the thread's new files and sockets, unless it has
// called setfsuid(2). The kernel shows both as the owner of the thread's folder, even if the thread is not dumpable.
// Looking there takes less time than reading the thread's status.
func userOf(tid uint32) (uid, gid int, err error) {
	var st unix.Stat_t
	err = statQuickly("/proc/"+strconv.FormatUint(uint64(tid), 10), &st)
	return int(st.Uid), int(st.Gid), err
}

// parseLeader returns the number of a thread's process from proc_pid_status(5).
func parseLeader(status []byte) (int, error) {
	for line := range bytes.Lines(status) {
		key, value, _ := bytes.Cut(line, []byte(":"))
		if string(key) == "Tgid" {
			return strconv.Atoi(string(bytes.TrimSpace(value)))
		}
	}
	return 0, errors.New("process status without a Tgid line")
}

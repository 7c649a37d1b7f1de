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
	if err := unix.Stat(namespacePath(tid), &st); err != nil {
		return namespaceID{}, fmt.Errorf("network namespace of thread %d: %w", tid, err)
	}
	return namespaceID{dev: st.Dev, ino: st.Ino}, nil
}

// executableOf returns the path of the file that a thread executes, also of one that was replaced meanwhile.
func executableOf(tid uint32) (string, error) {
	path, err := os.Readlink("/proc/" + strconv.FormatUint(uint64(tid), 10) + "/exe")
	return strings.TrimSuffix(path, " (deleted)"), err
}

// userOf returns the user and group of a thread's new files and sockets.
func userOf(tid uint32) (uid, gid int, err error) {
	fd, err := unix.Open("/proc/"+strconv.FormatUint(uint64(tid), 10)+"/status", unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return 0, 0, err
	}
	defer unix.Close(fd)
	// Uid and Gid are near the top, before the supplementary groups, which alone can exceed this size.
	var status [2048]byte
	n, err := unix.Read(fd, status[:])
	if err != nil {
		return 0, 0, err
	}
	return parseUser(status[:n])
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

// parseUser returns the fourth number, that of the file system, of the Uid and Gid lines of proc_pid_status(5).
func parseUser(status []byte) (uid, gid int, err error) {
	uid, gid = -1, -1
	for line := range bytes.Lines(status) {
		key, value, _ := bytes.Cut(line, []byte(":"))
		fields := bytes.Fields(value)
		if len(fields) != 4 {
			continue
		}
		id, err := strconv.ParseUint(string(fields[3]), 10, 32)
		if err != nil {
			continue
		}
		switch string(key) {
		case "Uid":
			uid = int(id)
		case "Gid":
			gid = int(id)
		}
	}
	if uid < 0 || gid < 0 {
		return 0, 0, errors.New("process status without Uid and Gid lines")
	}
	return uid, gid, nil
}

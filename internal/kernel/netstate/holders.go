package netstate

import (
	"bufio"
	"cmp"
	"fmt"
	"io"
	"os"
	"os/user"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
)

// PortHolder is a socket that has a port of this host.
type PortHolder struct {
	User    string // name, or number for a user without a name
	PID     int    // 0: unknown; other users' files in /proc may not be readable
	Program string // name of the process
}

// PortHolders returns the sockets that have a local port in the calling thread's network namespace, listeners first.
// Network is "udp" or "tcp".
func PortHolders(network string, port int) ([]PortHolder, error) {
	var found []boundSocket
	for _, family := range []string{"", "6"} {
		file, err := os.Open("/proc/thread-self/net/" + network + family)
		if os.IsNotExist(err) {
			continue // there is no IPv6
		}
		if err != nil {
			return nil, fmt.Errorf("find who has %s port %d: %w", network, port, err)
		}
		sockets, err := socketsAt(file, port)
		file.Close()
		if err != nil {
			return nil, fmt.Errorf("find who has %s port %d: %w", network, port, err)
		}
		found = append(found, sockets...)
	}
	// 0A, the state of TCP listeners, is the greatest except for a short-lived one.
	slices.SortStableFunc(found, func(a, b boundSocket) int { return cmp.Compare(b.state, a.state) })
	var holders []PortHolder
	for _, s := range found {
		h := PortHolder{User: userName(s.uid)}
		if h.PID = processOf(s.inode); h.PID != 0 {
			name, err := os.ReadFile(fmt.Sprintf("/proc/%d/comm", h.PID))
			if err == nil {
				h.Program = strings.TrimSpace(string(name))
			}
		}
		if !slices.Contains(holders, h) {
			holders = append(holders, h)
		}
	}
	return holders, nil
}

// boundSocket is a line of /proc/net/udp or tcp.
type boundSocket struct{ state, uid, inode string }

// socketsAt reads the sockets with a local port.
func socketsAt(list io.Reader, port int) (found []boundSocket, err error) {
	// sl local_address rem_address st queues timer retrnsmt uid timeout inode ...
	const local, state, uid, inode, least = 1, 3, 7, 9, 10
	lines := bufio.NewScanner(list)
	for lines.Scan() {
		fields := strings.Fields(lines.Text())
		if len(fields) < least {
			continue
		}
		_, number, _ := strings.Cut(fields[local], ":")
		if n, err := strconv.ParseUint(number, 16, 16); err == nil && int(n) == port {
			found = append(found, boundSocket{fields[state], fields[uid], fields[inode]})
		}
	}
	return found, lines.Err()
}

func userName(uid string) string {
	if u, err := user.LookupId(uid); err == nil {
		return u.Username
	}
	return uid
}

// processOf returns a process that has the socket open, or 0. It sees only processes whose files it may read.
func processOf(inode string) (pid int) {
	files, err := filepath.Glob("/proc/[0-9]*/fd/*")
	if err != nil || inode == "0" {
		return 0
	}
	for _, f := range files {
		if to, err := os.Readlink(f); err == nil && to == "socket:["+inode+"]" {
			pid, _ = strconv.Atoi(strings.Split(f, "/")[2])
			return pid
		}
	}
	return 0
}

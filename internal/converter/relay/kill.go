package relay

import (
	"errors"
	"fmt"
	"os"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/detour-collective/dcol/internal/kernel/sockinfo"
)

// killLimit bounds the wait for the end of a killed relay.
const killLimit = 5 * time.Second

// Listener returns the process and the user of the relay, or zero if they are not known.
func (c *Conn) Listener() unix.Ucred {
	relay, err := sockinfo.Peer(c.conn)
	if err != nil {
		return unix.Ucred{}
	}
	return *relay
}

// EndAndWait ends the relay as End does, and waits until its process has ended. It does not wait if the process is not known.
func (c *Conn) EndAndWait() error {
	pid, process, err := c.process()
	if err != nil {
		return c.End()
	}
	if process < 0 {
		return nil
	}
	defer unix.Close(process)
	if err := c.End(); err != nil {
		return err
	}
	if err := awaitEnd(process); err != nil {
		return fmt.Errorf("end the relay, process %d: %w", pid, err)
	}
	return nil
}

// process returns a handle of the relay's process, or -1 if the process has ended.
func (c *Conn) process() (pid, handle int, err error) {
	if pid = int(c.Listener().Pid); pid == 0 {
		return 0, -1, errors.New("the relay's process is not known: as root, find it with pgrep -f 'relay --dir', and end it with kill -KILL")
	}
	handle, err = unix.PidfdOpen(pid, 0)
	if errors.Is(err, unix.ESRCH) {
		return pid, -1, nil
	}
	if err != nil {
		return pid, -1, fmt.Errorf("the relay, process %d: %w", pid, err)
	}
	return pid, handle, nil
}

// Kill ends a relay that does not answer, such as a stopped process, and waits until it has ended. Its connections are reset.
func (c *Conn) Kill() error {
	pid, process, err := c.process()
	if err != nil || process < 0 {
		return err
	}
	defer unix.Close(process)
	// Another process may have got the number if the relay has just ended. Then the connection has ended, too.
	if err := c.conn.SetReadDeadline(time.Now().Add(time.Millisecond)); err != nil {
		return err
	}
	if _, err := c.conn.Read(make([]byte, 1)); err != nil && !errors.Is(err, os.ErrDeadlineExceeded) {
		return nil
	}
	// The run directory may be of a user other than root. That user must not have root kill another program that listens.
	if !runsRelay(pid) {
		return fmt.Errorf("process %d does not answer, and this user cannot see that it is a relay: if it is, as root: kill -KILL %d", pid, pid)
	}
	if err := unix.PidfdSendSignal(process, unix.SIGKILL, nil, 0); err != nil && !errors.Is(err, unix.ESRCH) {
		return fmt.Errorf("end the relay, process %d: %w; as root: kill -KILL %d", pid, err, pid)
	}
	if err := awaitEnd(process); err != nil {
		return fmt.Errorf("end the relay, process %d: %w", pid, err)
	}
	return nil
}

// runsRelay reports whether a process was started as relays are.
func runsRelay(pid int) bool {
	line, err := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid))
	words := strings.Split(string(line), "\x00")
	return err == nil && len(words) > 1 && words[1] == "relay"
}

// awaitEnd waits until a process has ended.
func awaitEnd(process int) error {
	for end := time.Now().Add(killLimit); ; {
		n, err := unix.Poll([]unix.PollFd{{Fd: int32(process), Events: unix.POLLIN}}, int(max(0, time.Until(end)).Milliseconds()))
		switch {
		case errors.Is(err, unix.EINTR): // the runtime's own signals interrupt it
		case err == nil && n == 0:
			return fmt.Errorf("it still runs after %v", killLimit)
		default:
			return err
		}
	}
}

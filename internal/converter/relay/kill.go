package relay

import (
	"errors"
	"fmt"
	"os"
	"time"

	"golang.org/x/sys/unix"

	"github.com/detour-collective/dcol/internal/kernel/sockinfo"
)

// killLimit bounds the wait for the end of a killed relay.
const killLimit = 5 * time.Second

// PID returns the process of the relay, or 0 if it is not known.
func (c *Conn) PID() int {
	relay, err := sockinfo.Peer(c.conn)
	if err != nil {
		return 0
	}
	return int(relay.Pid)
}

// Kill ends a relay that does not answer, such as a stopped process, and waits until it has ended. Its connections are reset.
func (c *Conn) Kill() error {
	pid := c.PID()
	if pid == 0 {
		return errors.New("the relay does not answer, and its process is not known")
	}
	process, err := unix.PidfdOpen(pid, 0)
	if errors.Is(err, unix.ESRCH) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("the relay, process %d: %w", pid, err)
	}
	defer unix.Close(process)
	// Another process may have got the number if the relay has just ended. Then the connection has ended, too.
	if err := c.conn.SetReadDeadline(time.Now().Add(time.Millisecond)); err != nil {
		return err
	}
	if _, err := c.conn.Read(make([]byte, 1)); err != nil && !errors.Is(err, os.ErrDeadlineExceeded) {
		return nil
	}
	if err := unix.PidfdSendSignal(process, unix.SIGKILL, nil, 0); err != nil && !errors.Is(err, unix.ESRCH) {
		return fmt.Errorf("end the relay, process %d: %w", pid, err)
	}
	if err := awaitEnd(process); err != nil {
		return fmt.Errorf("end the relay, process %d: %w", pid, err)
	}
	return nil
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

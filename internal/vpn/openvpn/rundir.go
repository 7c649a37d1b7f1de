package openvpn

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// rundir is the private folder of one openvpn, with its configuration, management socket and
// process number.
type rundir struct{ path string }

// RunDirs begins the name of every openvpn's folder in the agent's run-time directory: the waypoint's has this
// name, and a client's also the name of its waypoint.
const RunDirs = "openvpn"

// managementSocket is where openvpn connects to us.
const managementSocket = "management.sock"

func (d rundir) config() string { return filepath.Join(d.path, "openvpn.conf") }
func (d rundir) socket() string { return filepath.Join(d.path, managementSocket) }
func (d rundir) pid() string    { return filepath.Join(d.path, "pid") }

// openRundir creates the folder and ends an openvpn left there by a crashed agent.
func openRundir(path string) (rundir, error) {
	abs, err := filepath.Abs(path)
	if err != nil {
		return rundir{}, fmt.Errorf("find openvpn's folder: %w", err)
	}
	d := rundir{path: abs}
	// The kernel's struct sockaddr_un has 108 bytes for a path and its end.
	const longest = 107
	if len(d.socket()) > longest {
		return rundir{}, fmt.Errorf("the path of openvpn's folder is too long: %s has %d bytes, a socket's path %d: choose a shorter run_dir",
			d.socket(), len(d.socket()), longest)
	}
	if err := os.MkdirAll(abs, 0o700); err != nil {
		return rundir{}, fmt.Errorf("make openvpn's folder: %w", err)
	}
	if err := os.Chmod(abs, 0o700); err != nil {
		return rundir{}, fmt.Errorf("make openvpn's folder private: %w", err)
	}
	if err := d.endLeftover(); err != nil {
		return rundir{}, fmt.Errorf("end the openvpn of an agent that has crashed: %w", err)
	}
	return d, nil
}

// CleanUpDir ends an openvpn that a crashed agent left running from a folder, and removes our files
// there. A folder without our configuration is not touched.
func CleanUpDir(path string) error {
	abs, err := filepath.Abs(path)
	if err != nil {
		return fmt.Errorf("find openvpn's folder: %w", err)
	}
	d := rundir{path: abs}
	if _, err := os.Stat(d.config()); errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err := d.endLeftover(); err != nil {
		return fmt.Errorf("end the openvpn of an agent that has crashed: %w", err)
	}
	d.remove()
	return nil
}

// endLeftover kills the openvpn whose number is in the folder, if it is still ours. It was sent a
// signal when its agent died; this is for one that hangs.
func (d rundir) endLeftover() error {
	text, err := os.ReadFile(d.pid())
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	pid, err := strconv.Atoi(strings.TrimSpace(string(text)))
	if err != nil || pid < 2 {
		return os.Remove(d.pid())
	}
	// A descriptor opened first keeps the number from being reused by another process.
	fd, err := unix.PidfdOpen(pid, 0)
	if errors.Is(err, unix.ESRCH) {
		return os.Remove(d.pid())
	}
	if err != nil {
		return fmt.Errorf("look at process %d: %w", pid, err)
	}
	defer unix.Close(fd)
	args, err := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid))
	if err == nil && bytes.Contains(args, []byte("\x00"+d.config()+"\x00")) {
		if err := unix.PidfdSendSignal(fd, unix.SIGKILL, nil, 0); err != nil && !errors.Is(err, unix.ESRCH) {
			return fmt.Errorf("kill process %d: %w", pid, err)
		}
		wait := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}
		if n, err := unix.Poll(wait, int(killTime.Milliseconds())); err != nil || n == 0 {
			return fmt.Errorf("process %d does not end (%w): end it by hand", pid, errors.Join(err, os.ErrDeadlineExceeded))
		}
	}
	return os.Remove(d.pid())
}

func (d rundir) write(config string) error {
	if err := os.WriteFile(d.config(), []byte(config), 0o600); err != nil {
		return fmt.Errorf("write openvpn's configuration: %w", err)
	}
	return nil
}

// listen creates the management socket, replacing an old one.
func (d rundir) listen() (*net.UnixListener, error) {
	if err := os.Remove(d.socket()); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("remove the old management socket: %w", err)
	}
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: d.socket(), Net: "unix"})
	if err != nil {
		return nil, fmt.Errorf("listen for openvpn: %w", err)
	}
	if err := os.Chmod(d.socket(), 0o600); err != nil {
		l.Close()
		return nil, fmt.Errorf("make the management socket private: %w", err)
	}
	return l, nil
}

// remember records the process for endLeftover.
func (d rundir) remember(pid int) error {
	if err := os.WriteFile(d.pid(), []byte(strconv.Itoa(pid)+"\n"), 0o600); err != nil {
		return fmt.Errorf("note openvpn's process number: %w", err)
	}
	return nil
}

// remove removes our files, and the folder if nothing else is in it.
func (d rundir) remove() {
	for _, path := range []string{d.config(), d.socket(), d.pid(), d.path} {
		os.Remove(path)
	}
}

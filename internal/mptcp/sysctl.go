package mptcp

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"strconv"
	"strings"
)

// PathManager is who manages the paths of new MPTCP sockets, by the names of
// the sysctl net.mptcp.path_manager (since 6.15).
type PathManager string

const (
	KernelPM    PathManager = "kernel"
	UserspacePM PathManager = "userspace"
)

// pmTypes is what kernels before 6.15 know them by: the index here is the
// number in net.mptcp.pm_type.
var pmTypes = []PathManager{KernelPM, UserspacePM}

// Settings are the sysctls of a network namespace that matter to MPTCP.
type Settings struct {
	Enabled          bool        // sockets can be MPTCP
	PathManager      PathManager // of new sockets
	AllowJoinInitial bool        // peers may join the address they first connected to
}

// Settings reads the sysctls.
func (n *Namespace) Settings() (Settings, error) {
	enabled, err := n.sysctls.readInt("enabled")
	if err != nil {
		return Settings{}, err
	}
	join, err := n.sysctls.readInt("allow_join_initial_addr_port")
	if err != nil {
		return Settings{}, err
	}
	pm, err := n.sysctls.pathManager()
	if err != nil {
		return Settings{}, err
	}
	return Settings{Enabled: enabled != 0, AllowJoinInitial: join != 0, PathManager: pm}, nil
}

// AcquireUserspacePM implements Kernel.
func (n *Namespace) AcquireUserspacePM() (previous PathManager, err error) {
	settings, err := n.Settings()
	if err != nil {
		return "", err
	}
	if !settings.Enabled {
		return "", unsupported(Enabled)
	}
	if settings.PathManager == UserspacePM {
		return UserspacePM, nil
	}
	return settings.PathManager, n.SetPM(UserspacePM)
}

// SetPM implements Kernel.
func (n *Namespace) SetPM(pm PathManager) error { return n.sysctls.setPathManager(pm) }

// UserspacePMSysctl is the sysctl that gives new sockets to userspace on this
// kernel, and its value, for a caller that keeps a record of what it changes.
func (n *Namespace) UserspacePMSysctl() (key, value string, err error) {
	if _, err := n.sysctls.read("path_manager"); err == nil {
		return "net/mptcp/path_manager", string(UserspacePM), nil
	}
	if _, err := n.sysctls.read("pm_type"); errors.Is(err, fs.ErrNotExist) {
		return "", "", unsupported(Userspace)
	} else if err != nil {
		return "", "", err
	}
	return "net/mptcp/pm_type", strconv.Itoa(slices.Index(pmTypes, UserspacePM)), nil
}

// sysctls is the directory net/mptcp of the namespace of the thread that
// opened it. The open directory keeps to that namespace, whichever thread uses
// it later; a path under /proc/sys would be looked up anew in the namespace of
// the thread that happens to open it.
type sysctls struct{ dir *os.Root }

func openSysctls() (sysctls, error) {
	dir, err := os.OpenRoot("/proc/sys/net/mptcp")
	if errors.Is(err, fs.ErrNotExist) {
		return sysctls{}, unsupported(MPTCP)
	}
	if err != nil {
		return sysctls{}, fmt.Errorf("open MPTCP sysctls: %w", err)
	}
	return sysctls{dir}, nil
}

func (s sysctls) close() error {
	if s.dir == nil {
		return nil
	}
	return s.dir.Close()
}

func (s sysctls) read(name string) (string, error) {
	b, err := s.dir.ReadFile(name)
	if err != nil {
		return "", fmt.Errorf("read sysctl net.mptcp.%s: %w", name, err)
	}
	return strings.TrimSpace(string(b)), nil
}

func (s sysctls) readInt(name string) (int, error) {
	text, err := s.read(name)
	if err != nil {
		return 0, err
	}
	v, err := strconv.Atoi(text)
	if err != nil {
		return 0, fmt.Errorf("read sysctl net.mptcp.%s: %w", name, err)
	}
	return v, nil
}

func (s sysctls) write(name, value string) error {
	f, err := s.dir.OpenFile(name, os.O_WRONLY, 0)
	if err == nil {
		_, err = f.WriteString(value)
		err = errors.Join(err, f.Close())
	}
	if err != nil {
		return fmt.Errorf("set sysctl net.mptcp.%s to %s: %w", name, value, err)
	}
	return nil
}

func (s sysctls) pathManager() (PathManager, error) {
	name, err := s.read("path_manager")
	if err == nil {
		return PathManager(name), nil
	}
	if !errors.Is(err, fs.ErrNotExist) {
		return "", err
	}
	typ, err := s.readInt("pm_type")
	if errors.Is(err, fs.ErrNotExist) {
		return KernelPM, nil // before 5.19 there is no other
	}
	if err != nil {
		return "", err
	}
	if typ < 0 || typ >= len(pmTypes) {
		return "", fmt.Errorf("sysctl net.mptcp.pm_type has the unknown value %d", typ)
	}
	return pmTypes[typ], nil
}

func (s sysctls) setPathManager(pm PathManager) error {
	err := s.write("path_manager", string(pm))
	if !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	typ := slices.Index(pmTypes, pm)
	if typ < 0 {
		return fmt.Errorf("set path manager %q: this kernel knows only %v", pm, pmTypes)
	}
	err = s.write("pm_type", strconv.Itoa(typ))
	if errors.Is(err, fs.ErrNotExist) {
		return unsupported(Userspace)
	}
	return err
}

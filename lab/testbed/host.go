package testbed

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// ErrClosed is returned by operations on a network after Close.
var ErrClosed = errors.New("the network is closed")

// Host is one host of a network. Its methods may be called from any goroutine.
type Host struct {
	plan  hostPlan
	links []string // names, in the order of plan.ifaces

	init  *exec.Cmd // process 1 of the host
	life  io.Closer // the host lives while this pipe is open
	netns *os.File

	calls chan func()   // run on the host's thread
	quit  chan struct{} // closed: the thread ends
	ended chan struct{} // closed: the thread has ended

	mu         sync.Mutex               // guards the rest, and the addresses in plan
	running    map[*os.Process]struct{} // started by Command, not yet waited for
	congestion string                   // the host's algorithm

	coupled *coupled // of the network
}

// startHost brings up the host's namespaces, with loopback down and no links.
func startHost(p hostPlan, links []string, etcHosts string, c *coupled) (*Host, error) {
	h := &Host{
		plan: p, links: links, coupled: c,
		calls: make(chan func()), quit: make(chan struct{}), ended: make(chan struct{}),
		running: map[*os.Process]struct{}{},
	}
	started := make(chan error)
	go offMainThread(func() { h.thread(etcHosts, started) })
	if err := <-started; err != nil {
		return nil, fmt.Errorf("start host %s: %w", p.Name, err)
	}
	return h, nil
}

// offMainThread runs f on a locked thread that is not the process's first thread. The first one cannot end, and
// /proc/self describes it.
func offMainThread(f func()) {
	runtime.LockOSThread()
	if unix.Gettid() != unix.Getpid() {
		f()
		return // still locked: the thread ends with the goroutine
	}
	moved := make(chan struct{})
	go func() {
		runtime.LockOSThread()
		close(moved)
		f()
	}()
	<-moved
	runtime.UnlockOSThread()
}

// thread owns the only thread that is on the host. It also starts init, because the parent-death signal is tied to the
// thread, not to the process.
func (h *Host) thread(etcHosts string, started chan<- error) {
	defer close(h.ended)
	err := enterParentNamespace()
	if err == nil {
		err = h.startInit(etcHosts)
	}
	if err == nil {
		if err = h.enter(); err != nil {
			err = errors.Join(err, h.stopInit())
		}
	}
	started <- err
	if err != nil {
		return
	}
	for {
		select {
		case call := <-h.calls:
			call()
		case <-h.quit:
			return
		}
	}
}

func (h *Host) startInit(etcHosts string) error {
	config, err := json.Marshal(initConfig{Hostname: h.plan.Name, EtcHosts: etcHosts})
	if err != nil {
		return err
	}
	h.init = &exec.Cmd{
		Path: "/proc/self/exe", // the running executable, even if its file was replaced
		Args: []string{hostStage, h.plan.Name},
		Dir:  "/",
		SysProcAttr: &syscall.SysProcAttr{
			Cloneflags: unix.CLONE_NEWNET | unix.CLONE_NEWNS | unix.CLONE_NEWPID | unix.CLONE_NEWUTS,
			Pdeathsig:  unix.SIGKILL,
			Setsid:     true, // a terminal's Ctrl-C reaches only the builder
		},
	}
	stdin, err := h.init.StdinPipe()
	if err != nil {
		return err
	}
	h.life = stdin
	said, answer, err := os.Pipe()
	if err != nil {
		return err
	}
	defer said.Close()
	h.init.Stdout, h.init.Stderr = answer, answer
	err = h.init.Start()
	answer.Close()
	if err != nil {
		return namespacesRefused(err)
	}
	if _, err := stdin.Write(config); err != nil {
		return errors.Join(fmt.Errorf("configure: %w", err), h.stopInit())
	}
	line := make([]byte, len(initReady))
	if _, err := io.ReadFull(said, line); err != nil || string(line) != initReady {
		h.life.Close()
		rest, _ := io.ReadAll(said)
		_ = h.stopInit() // its output, in rest, has the reason
		return fmt.Errorf("init: %s", strings.TrimSpace(strings.Trim(string(line), "\x00")+string(rest)))
	}
	return nil
}

// enter moves the calling thread into the host's namespaces. Only the processes that the thread starts are in the PID
// namespace, not the thread.
func (h *Host) enter() error {
	proc := fmt.Sprintf("/proc/%d/ns/", h.init.Process.Pid)
	netns, err := os.Open(proc + "net")
	if err != nil {
		return err
	}
	h.netns = netns
	// A thread that shares its root and working directory with others may not change its mount namespace.
	if err := unix.Unshare(unix.CLONE_FS); err != nil {
		return fmt.Errorf("unshare the working directory: %w", err)
	}
	kinds := []struct {
		name string
		flag int
	}{{"net", unix.CLONE_NEWNET}, {"uts", unix.CLONE_NEWUTS}, {"pid", unix.CLONE_NEWPID}, {"mnt", unix.CLONE_NEWNS}}
	for _, kind := range kinds {
		f, err := os.Open(proc + kind.name)
		if err != nil {
			return err
		}
		err = unix.Setns(int(f.Fd()), kind.flag)
		f.Close()
		if err != nil {
			return fmt.Errorf("enter the host's %s namespace: %w", kind.name, err)
		}
	}
	return nil
}

// Do runs fn on the host's thread. Sockets that fn opens belong to the host, and files that it opens are the
// host's. fn must be short, because everything else on the host's thread waits for it. It must not call Do or
// start a Command, and must not end its goroutine (testing's Fatal does). It cannot use /proc/self: the
// thread is in the host's namespaces, but is not one of its processes.
func (h *Host) Do(fn func() error) error {
	result := make(chan error, 1)
	select {
	case h.calls <- func() { result <- fn() }:
		return <-result
	case <-h.ended:
		return fmt.Errorf("host %s: %w", h.plan.Name, ErrClosed)
	}
}

// On runs fn on a host's thread, as Do does, and returns its result.
func On[T any](h *Host, fn func() (T, error)) (result T, err error) {
	err = h.Do(func() (err error) {
		result, err = fn()
		return err
	})
	return result, err
}

// Link returns the host's interface on a link.
func (h *Host) Link(link string) (netlink.Link, error) {
	return On(h, func() (netlink.Link, error) { return findLink(h.Interface(link)) })
}

// Name returns the host's name and hostname.
func (h *Host) Name() string { return h.plan.Name }

// Addr4 returns the host's address on its first link. /etc/hosts has this address, unless the host was renumbered. It
// is invalid on a host without IPv4.
func (h *Host) Addr4() netip.Addr {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.plan.addr4()
}

// Addr6 returns the host's IPv6 address on its first link.
func (h *Host) Addr6() netip.Addr {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.plan.addr6()
}

// Addr returns the address that others use for the host: its IPv4 address if it has one.
func (h *Host) Addr() netip.Addr {
	if addr := h.Addr4(); addr.IsValid() {
		return addr
	}
	return h.Addr6()
}

// AddrOn returns the host's addresses on a link. They are invalid if the host is not on that link.
func (h *Host) AddrOn(link string) (v4, v6 netip.Addr) {
	iface, _ := h.ifaceOn(link)
	return iface.net4.Addr(), iface.net6.Addr()
}

// Interface returns the name of the host's interface on a link, or "" if the host is not on that link.
func (h *Host) Interface(link string) string {
	iface, _ := h.ifaceOn(link)
	return iface.name
}

// ifaceOn returns the host's interface on a link, and reports whether the host is on that link.
func (h *Host) ifaceOn(link string) (ifacePlan, bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for i, name := range h.links {
		if name == link {
			return h.plan.ifaces[i], true
		}
	}
	return ifacePlan{}, false
}

// Sysctl sets a kernel parameter of the host. The name has the form that sysctl(8) accepts: "net.ipv4.ip_forward" or
// "net/ipv4/ip_forward".
func (h *Host) Sysctl(key, value string) error {
	return h.Do(func() error { return setSysctl(key, value) })
}

func setSysctl(key, value string) error {
	if !strings.Contains(key, "/") {
		key = strings.ReplaceAll(key, ".", "/")
	}
	// Without O_CREATE: if the parameter is unknown, procfs would answer "permission denied" to creating it.
	f, err := os.OpenFile(filepath.Join("/proc/sys", key), os.O_WRONLY, 0)
	if err != nil {
		return fmt.Errorf("set sysctl to %q: %w", value, err)
	}
	defer f.Close()
	if _, err := f.WriteString(value); err != nil {
		return fmt.Errorf("set sysctl to %q: %w", value, err)
	}
	return nil
}

// WriteFile writes one of the host's own files, which are below /etc, /run, /var/lib and /var/log.
func (h *Host) WriteFile(path string, data []byte, mode os.FileMode) error {
	if err := h.Do(func() error { return os.WriteFile(path, data, mode) }); err != nil {
		return fmt.Errorf("host %s: %w", h.Name(), err)
	}
	return nil
}

// ReadFile reads a file as programs on the host see it.
func (h *Host) ReadFile(path string) ([]byte, error) {
	data, err := On(h, func() ([]byte, error) { return os.ReadFile(path) })
	if err != nil {
		return nil, fmt.Errorf("host %s: %w", h.Name(), err)
	}
	return data, nil
}

// stopInit ends init, and with it all processes of the host.
func (h *Host) stopInit() error {
	h.life.Close()
	// Init cannot exit before the parent of each process has waited for it. This process is the parent of the
	// commands.
	h.mu.Lock()
	for p := range h.running {
		go func() { _, _ = p.Wait() }()
	}
	h.mu.Unlock()
	timer := time.AfterFunc(5*time.Second, func() { h.init.Process.Kill() })
	defer timer.Stop()
	if err := h.init.Wait(); err != nil {
		return fmt.Errorf("host %s: end init: %w", h.plan.Name, err)
	}
	return nil
}

func (h *Host) close() error {
	err := h.stopInit()
	close(h.quit)
	<-h.ended
	return errors.Join(err, h.netns.Close())
}

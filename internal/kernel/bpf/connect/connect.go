// Package connect redirects connect() of programs to listeners of this host. It affects the TCP sockets that the
// programs of one cgroup make in one network namespace. On a redirected socket, getpeername() returns the server's
// address, as on any other socket. The process with the listeners finds the server by the source address of a
// connection: a sockops program notes both when the socket has its port and before its SYN leaves. Answering a
// getsockopt() such as SO_ORIGINAL_DST would need the same note, and a program on the listeners' cgroup besides.
//
// In case of doubt programs reach their servers directly. The eBPF programs redirect for a limited time, which must be
// renewed. They end with their process, and they redirect nothing while nobody listens. Only internal/converter and
// internal/agent may import this package.
package connect

import (
	"errors"
	"fmt"
	"net/netip"
	"sync"
	"time"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"
	"golang.org/x/sys/unix"

	"github.com/detour-collective/dcol/internal/kernel/bpf/sockops"
	"github.com/detour-collective/dcol/internal/kernel/bpf/tcfilter"
)

//go:generate go run github.com/cilium/ebpf/cmd/bpf2go -cc clang-14 -strip llvm-strip-14 -target bpfel -no-global-types -tags linux redirect redirect.c -- -O2 -Wall -Werror -idirafter /usr/include/x86_64-linux-gnu -idirafter /usr/include/aarch64-linux-gnu

// Rules determine which connections are redirected.
type Rules struct {
	// Port4 and Port6 are the ports of the listeners at 127.0.0.1 and ::1. 0: there is no listener, and connections of
	// this family are not redirected.
	Port4, Port6 uint16
	// Others reports whether connections to servers that are not in Servers are redirected. Those to servers in Servers
	// are treated in the opposite way.
	Others  bool
	Servers map[netip.AddrPort]struct{}
	// Connections to Networks and Ports, and those of Cgroups and Processes, are never redirected. Cgroups are ids from
	// [CgroupID], and include all cgroups below them. Processes are ids from [ProcessID].
	Networks  map[netip.Prefix]struct{}
	Ports     map[uint16]struct{}
	Cgroups   map[uint64]struct{}
	Processes map[uint32]struct{}
}

// Hook stands for the attached programs. Its methods may be called from any goroutine.
type Hook struct {
	objects redirectObjects
	links   []link.Link

	mu        sync.Mutex
	others    bool
	servers   table[netip.AddrPort, endpoint]
	networks  table[netip.Prefix, network]
	ports     table[uint16, uint64]
	cgroups   table[uint64, uint64]
	processes table[uint32, uint64]
}

// UnavailableError reports why this host cannot load the programs, and how to fix it.
type UnavailableError struct {
	Fix string
	Err error
}

func (e *UnavailableError) Error() string {
	return fmt.Sprintf("connections cannot be redirected here: %v (%s)", e.Err, e.Fix)
}

func (e *UnavailableError) Unwrap() error { return e.Err }

// Open attaches the programs to a cgroup, for sockets of the thread's network namespace. The cgroup is a folder of
// cgroup v2; if it is empty, the root, which covers all. Nothing is redirected before Set and Renew. The programs work
// until the Hook is closed or its process ends.
//
// sources is the map of another process's Hook (see [Hook.Sources]), or nil. With it, Take also finds connections that
// the other Hook has redirected. Open does not close it.
func Open(cgroup string, sources *ebpf.Map) (*Hook, error) {
	spec, err := loadRedirect()
	if err != nil {
		return nil, fmt.Errorf("read the embedded programs: %w", err)
	}
	folder, err := sockops.OpenCgroup(cgroup)
	if err != nil {
		return nil, unavailable(err)
	}
	defer folder.Close()
	cookie, err := sockops.NamespaceCookie()
	if err != nil {
		return nil, err
	}
	if err := spec.Variables["netns_cookie"].Set(cookie); err != nil {
		return nil, fmt.Errorf("tell the programs their namespace: %w", err)
	}
	h := &Hook{}
	if err := h.load(spec, sources); err != nil {
		return nil, unavailable(err)
	}
	for _, p := range h.programs() {
		attached, err := sockops.Attach(folder, p.program, p.at)
		if err != nil {
			return nil, errors.Join(unavailable(err), h.Close())
		}
		h.links = append(h.links, attached)
	}
	return h, nil
}

func (h *Hook) load(spec *ebpf.CollectionSpec, sources *ebpf.Map) error {
	var options *ebpf.CollectionOptions
	if sources != nil {
		options = &ebpf.CollectionOptions{MapReplacements: map[string]*ebpf.Map{"sources": sources}}
	}
	err := spec.LoadAndAssign(&h.objects, options)
	if sources != nil && errors.Is(err, ebpf.ErrMapIncompatible) { // the map is from another version
		err = spec.LoadAndAssign(&h.objects, nil)
	}
	if err != nil {
		return fmt.Errorf("load the programs: %w", err)
	}
	h.servers = table[netip.AddrPort, endpoint]{kernel: h.objects.Servers, encode: encodeEndpoint}
	h.networks = table[netip.Prefix, network]{kernel: h.objects.Networks, encode: encodeNetwork}
	h.ports = table[uint16, uint64]{kernel: h.objects.Ports, encode: encodePort}
	h.cgroups = table[uint64, uint64]{kernel: h.objects.Cgroups, encode: func(id uint64) uint64 { return id }}
	h.processes = table[uint32, uint64]{kernel: h.objects.Processes, encode: func(id uint32) uint64 { return uint64(id) }}
	return nil
}

type program struct {
	program *ebpf.Program
	at      ebpf.AttachType
}

// programs returns the programs in the order in which they are attached. The one that redirects is last.
func (h *Hook) programs() []program {
	return []program{
		{h.objects.PeerIpv4, ebpf.AttachCgroupInet4GetPeername},
		{h.objects.PeerIpv6, ebpf.AttachCgroupInet6GetPeername},
		{h.objects.NoteSource, ebpf.AttachCGroupSockOps},
		{h.objects.NoteSocket, ebpf.AttachCGroupInetSockCreate},
		{h.objects.ConnectIpv4, ebpf.AttachCGroupInet4Connect},
		{h.objects.ConnectIpv6, ebpf.AttachCGroupInet6Connect},
	}
}

// Close detaches the programs. getpeername() on redirected sockets then returns the listener's address. So a process
// whose redirected connections have not ended calls Pause instead.
func (h *Hook) Close() error {
	var errs []error
	for i := len(h.links) - 1; i >= 0; i-- {
		errs = append(errs, h.links[i].Close())
	}
	return errors.Join(append(errs, h.objects.Close())...)
}

// Set changes the rules. If Others changes, nothing is redirected until the next Renew, because the meaning of Servers
// changes with it. After an error, only some of the rules have changed.
func (h *Hook) Set(r Rules) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	if err := h.set(r); err != nil {
		return fmt.Errorf("change which connections are redirected: %w", err)
	}
	return nil
}

func (h *Hook) set(r Rules) error {
	if r.Others != h.others {
		if err := h.pause(); err != nil {
			return err
		}
		h.others = r.Others
	}
	others := uint32(0)
	if r.Others {
		others = 1
	}
	return errors.Join(
		h.objects.Port4.Set(uint32(encodePort(r.Port4))),
		h.objects.Port6.Set(uint32(encodePort(r.Port6))),
		h.processes.set(r.Processes),
		h.cgroups.set(r.Cgroups),
		h.networks.set(r.Networks),
		h.ports.set(r.Ports),
		h.servers.set(r.Servers),
		h.objects.Others.Set(others),
	)
}

// Renew makes the programs redirect for a limited time from now on.
func (h *Hook) Renew(limit time.Duration) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	var now unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &now); err != nil {
		return fmt.Errorf("read the clock: %w", err)
	}
	if err := h.objects.Until.Set(uint64(now.Nano() + limit.Nanoseconds())); err != nil {
		return fmt.Errorf("have connections redirected: %w", err)
	}
	return nil
}

// Pause stops redirecting until the next Renew. Connections that are redirected continue.
func (h *Hook) Pause() error {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.pause()
}

func (h *Hook) pause() error {
	if err := h.objects.Until.Set(uint64(0)); err != nil {
		return fmt.Errorf("have no connections redirected: %w", err)
	}
	return nil
}

// Take returns the server of a redirected connection by its source address. It does so once for each connection.
func (h *Hook) Take(from netip.AddrPort) (server netip.AddrPort, ok bool) {
	key, value := encodeEndpoint(from), endpoint{}
	if err := h.objects.Sources.LookupAndDelete(&key, &value); err != nil {
		return netip.AddrPort{}, false
	}
	return value.decode(), true
}

// Sources returns the map that Take reads, for the process that takes over the listeners.
func (h *Hook) Sources() *ebpf.Map { return h.objects.Sources }

// CgroupID returns the id of a cgroup, given by its folder. A folder that was removed and made again has another id.
func CgroupID(folder string) (uint64, error) {
	file, err := sockops.OpenCgroup(folder)
	if err != nil {
		return 0, err
	}
	defer file.Close()
	var st unix.Stat_t
	if err := unix.Fstat(int(file.Fd()), &st); err != nil {
		return 0, fmt.Errorf("identify the cgroup %s: %w", folder, err)
	}
	return st.Ino, nil
}

// ProcessID returns the id of this process in the initial PID namespace. The programs identify processes by it. In
// other PID namespaces, no file shows it.
func ProcessID() (uint32, error) {
	spec, err := loadRedirect()
	if err != nil {
		return 0, fmt.Errorf("read the embedded programs: %w", err)
	}
	var only struct {
		Identify *ebpf.Program `ebpf:"identify"`
	}
	if err := spec.LoadAndAssign(&only, nil); err != nil {
		return 0, unavailable(fmt.Errorf("load a program: %w", err))
	}
	defer only.Identify.Close()
	var caller struct{ Process uint64 }
	if _, err := only.Identify.Run(&ebpf.RunOptions{Context: &caller, ContextOut: &caller}); err != nil {
		return 0, unavailable(fmt.Errorf("run a program: %w", err))
	}
	return uint32(caller.Process), nil
}

const fixKernel = "needs Linux 6.1 or newer with CONFIG_BPF_SYSCALL and CONFIG_CGROUP_BPF"

// unavailable adds advice to an error, if the kernel's answer allows it.
func unavailable(err error) error {
	if c, ok := errors.AsType[*sockops.Error](err); ok {
		return &UnavailableError{Fix: c.Fix, Err: c.Err}
	}
	return &UnavailableError{Fix: tcfilter.FixFor(err, fixKernel), Err: err}
}

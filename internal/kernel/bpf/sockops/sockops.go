// Package sockops contains the shared code of our programs at a cgroup's sockets: it opens the cgroup, attaches the
// programs, and identifies the sockets of one network namespace. Only packages below internal/kernel/bpf may import it.
package sockops

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"os"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"
	"golang.org/x/sys/unix"
)

// Load loads the objects of a spec and attaches their program to the sockets of a cgroup, in the thread's
// network namespace, until the link is closed or its process ends. It sets the spec's variables to settings,
// and netns_cookie to the namespace's. The caller closes objects after the link; if there is an error, they
// are closed.
func Load(cgroup string, spec *ebpf.CollectionSpec, settings map[string]any, objects io.Closer, program func() *ebpf.Program) (link.Link, error) {
	return LoadSharing(cgroup, spec, settings, nil, objects, program)
}

// LoadSharing is like Load, but uses the given maps of other programs, by their names in the spec.
func LoadSharing(cgroup string, spec *ebpf.CollectionSpec, settings map[string]any, shared map[string]*ebpf.Map, objects io.Closer, program func() *ebpf.Program) (link.Link, error) {
	folder, err := OpenCgroup(cgroup)
	if err != nil {
		return nil, err
	}
	defer folder.Close()
	cookie, err := NamespaceCookie()
	if err != nil {
		return nil, err
	}
	err = spec.Variables["netns_cookie"].Set(cookie)
	for name, value := range settings {
		err = errors.Join(err, spec.Variables[name].Set(value))
	}
	if err != nil {
		return nil, fmt.Errorf("tell the program its namespace and its settings: %w", err)
	}
	if err := spec.LoadAndAssign(objects, &ebpf.CollectionOptions{MapReplacements: shared}); err != nil {
		return nil, fmt.Errorf("load the program: %w", err)
	}
	attached, err := Attach(folder, program(), ebpf.AttachCGroupSockOps)
	if err != nil {
		return nil, errors.Join(err, objects.Close())
	}
	return attached, nil
}

// Attach attaches a program to a hook at the sockets of a cgroup, until the link is closed or its process ends. If the
// programs that are attached already allow no other, the error is an [*Error].
func Attach(cgroup *os.File, program *ebpf.Program, hook ebpf.AttachType) (link.Link, error) {
	// link.AttachCgroup is not used, because its fallback would outlive the process.
	attached, err := link.AttachRawLink(link.RawLinkOptions{
		Target: int(cgroup.Fd()), Program: program, Attach: hook,
	})
	if err != nil {
		return nil, occupied(fmt.Errorf("attach the program to the cgroup %s: %w", cgroup.Name(), err))
	}
	return attached, nil
}

// occupied adds advice to an error of attaching. The program is already loaded, so the reason is not a lack of rights.
func occupied(err error) error {
	switch {
	case errors.Is(err, unix.EPERM):
		return &Error{Occupied: true, Err: err, Fix: "a program that another one attached to this cgroup, or to one above it, allows no second one: " +
			"`bpftool cgroup tree` lists them, and those without the flag multi are such; end it, or have it attached with BPF_F_ALLOW_MULTI"}
	case errors.Is(err, unix.E2BIG):
		return &Error{Occupied: true, Err: err, Fix: "the cgroup has as many programs as it takes: name another one"}
	}
	return err
}

// NamespaceCookie returns the cookie of the thread's network namespace, which is unique until the next reboot.
func NamespaceCookie() (uint64, error) {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return 0, fmt.Errorf("ask for the namespace's cookie: %w", err)
	}
	defer unix.Close(fd)
	cookie, err := unix.GetsockoptUint64(fd, unix.SOL_SOCKET, unix.SO_NETNS_COOKIE)
	if err != nil {
		return 0, fmt.Errorf("ask for the namespace's cookie: %w", err)
	}
	return cookie, nil
}

// Ports returns a socket's ports in the programs' form: each in network byte order, the local one in the lower half.
func Ports(local, remote netip.AddrPort) uint64 {
	wire := func(port uint16) uint64 {
		return uint64(binary.NativeEndian.Uint16(binary.BigEndian.AppendUint16(nil, port)))
	}
	return wire(local.Port()) | wire(remote.Port())<<32
}

// Ends has the addresses and ports of a subflow in the programs' form (struct subflow of ends.h).
type Ends struct {
	Local, Remote [2]uint64
	Ports         uint64
}

// EndsOf returns the Ends of a subflow.
func EndsOf(local, remote netip.AddrPort) Ends {
	return Ends{Local: words(local.Addr()), Remote: words(remote.Addr()), Ports: Ports(local, remote)}
}

// words returns an address in the programs' format.
func words(a netip.Addr) (w [2]uint64) {
	if a = a.Unmap(); a.Is4() {
		b := a.As4()
		return [2]uint64{0, uint64(binary.NativeEndian.Uint32(b[:]))}
	}
	b := a.As16()
	return [2]uint64{binary.NativeEndian.Uint64(b[:]), binary.NativeEndian.Uint64(b[8:])}
}

// Package mptcpify loads the eBPF program that turns new TCP sockets into MPTCP sockets, for a whole network
// namespace or for one cgroup in it. It needs a kernel with the hook (6.6) and a policy that allows programs to
// change the results of kernel functions. Only internal/mptcpify and internal/agent may import it.
package mptcpify

import (
	"errors"
	"fmt"
	"os"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/btf"
	"github.com/cilium/ebpf/link"
	"golang.org/x/sys/unix"
)

//go:generate go run github.com/cilium/ebpf/cmd/bpf2go -cc clang-14 -strip llvm-strip-14 -target bpfel -no-global-types -tags linux prog prog.c -- -O2 -Wall -Werror -idirafter /usr/include/x86_64-linux-gnu -idirafter /usr/include/aarch64-linux-gnu

// Scope selects the programs whose sockets become MPTCP.
type Scope struct {
	// NetworkNamespace is the inode number of /proc/PID/ns/net.
	NetworkNamespace uint32
	// Cgroup is a folder of the cgroup v2 hierarchy. Only its processes are selected. Empty: all processes in the
	// network namespace.
	Cgroup string
}

// Hook is the attached program. It works until it is closed, or its process ends.
type Hook struct {
	objects progObjects
	link    link.Link
}

// UnavailableError reports why this kernel cannot load the program.
type UnavailableError struct {
	Fix string
	Err error
}

func (e *UnavailableError) Error() string {
	return fmt.Sprintf("the kernel's update_socket_protocol hook cannot be used: %v (%s)", e.Err, e.Fix)
}

func (e *UnavailableError) Unwrap() error { return e.Err }

// Attach loads and attaches the program.
func Attach(scope Scope) (_ *Hook, err error) {
	spec, err := loadProg()
	if err != nil {
		return nil, fmt.Errorf("read the embedded mptcpify program: %w", err)
	}
	if err := setScope(spec, scope); err != nil {
		return nil, fmt.Errorf("tell the mptcpify program its scope: %w", err)
	}
	h := &Hook{}
	if err := spec.LoadAndAssign(&h.objects, nil); err != nil {
		return nil, unavailable(fmt.Errorf("load the mptcpify program: %w", err))
	}
	defer func() {
		if err != nil {
			_ = h.objects.Close()
		}
	}()
	if scope.Cgroup != "" {
		if err := h.limitTo(scope.Cgroup); err != nil {
			return nil, err
		}
	}
	h.link, err = link.AttachTracing(link.TracingOptions{Program: h.objects.Mptcpify})
	if err != nil {
		return nil, unavailable(fmt.Errorf("attach the mptcpify program: %w", err))
	}
	return h, nil
}

// Close detaches the hook. Existing sockets do not change.
func (h *Hook) Close() error { return errors.Join(h.link.Close(), h.objects.Close()) }

func setScope(spec *ebpf.CollectionSpec, scope Scope) error {
	return errors.Join(
		spec.Variables["network_namespace"].Set(scope.NetworkNamespace),
		spec.Variables["only_cgroup"].Set(scope.Cgroup != ""),
	)
}

func (h *Hook) limitTo(path string) error {
	group, err := os.Open(path)
	if err != nil {
		return fmt.Errorf("open the cgroup whose sockets become MPTCP: %w", err)
	}
	defer group.Close()
	if err := h.objects.Scope.Put(uint32(0), uint32(group.Fd())); err != nil {
		return fmt.Errorf("limit the mptcpify program to %s (it must be a folder of cgroup v2): %w", path, err)
	}
	return nil
}

func unavailable(err error) error {
	fix := "unexpected: please report it with `uname -a`; `dcol run` does without"
	switch {
	case errors.Is(err, unix.EPERM):
		// The library's text wrongly blames the limit on locked memory.
		err = unix.EPERM
		fix = "needs CAP_BPF and CAP_PERFMON, and a kernel whose lockdown or policy allows it; docs/security.md shows a drop-in for the " +
			"packaged service, which has no CAP_PERFMON; `dcol run` does without"
	case errors.Is(err, btf.ErrNotFound), errors.Is(err, ebpf.ErrNotSupported), errors.Is(err, os.ErrNotExist):
		fix = "needs Linux 6.6 or newer with CONFIG_DEBUG_INFO_BTF and CONFIG_BPF_JIT; `dcol run` does without"
	}
	return &UnavailableError{Fix: fix, Err: err}
}

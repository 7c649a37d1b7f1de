package inband

import (
	"errors"
	"fmt"

	"github.com/detour-collective/dcol/internal/kernel/bpf/sockops"
	"github.com/detour-collective/dcol/internal/kernel/bpf/tcfilter"
)

// UnavailableError reports why this host cannot load the programs, and how to fix it.
type UnavailableError struct {
	Fix string
	Err error
}

func (e *UnavailableError) Error() string {
	return fmt.Sprintf("in-band detours cannot be used here: %v (%s)", e.Err, e.Fix)
}

func (e *UnavailableError) Unwrap() error { return e.Err }

const fixKernel = "needs Linux 6.1 or newer with CONFIG_BPF_SYSCALL, CONFIG_CGROUP_BPF, CONFIG_NET_CLS_BPF and CONFIG_NET_SCH_INGRESS"

// unavailable adds advice to an error, if the kernel's answer allows it.
func unavailable(err error) error {
	if c, ok := errors.AsType[*sockops.Error](err); ok {
		return &UnavailableError{Fix: c.Fix, Err: c.Err}
	}
	return &UnavailableError{Fix: tcfilter.FixFor(err, fixKernel), Err: err}
}

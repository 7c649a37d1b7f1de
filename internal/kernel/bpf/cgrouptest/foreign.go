package cgrouptest

import (
	"errors"
	"testing"
	"time"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"

	"github.com/detour-collective/dcol/internal/kernel/bpf/sockops"
	"github.com/detour-collective/dcol/internal/kernel/netstate/netnstest"
)

//go:generate go run github.com/cilium/ebpf/cmd/bpf2go -cc clang-14 -strip llvm-strip-14 -target bpfel -tags linux foreign foreign.c -- -O2 -Wall -Werror -idirafter /usr/include/x86_64-linux-gnu -idirafter /usr/include/aarch64-linux-gnu

// Foreign stands for another vendor's program at the sockets of a namespace. It writes its own option in each segment,
// and reads that of the other host.
type Foreign struct {
	objects foreignObjects
	link    link.Link
}

// ForeignSettings are settings that Foreign makes on connections that its host opens. Zero values change nothing.
type ForeignSettings struct {
	BytesPerSecond uint32
	UserTimeout    time.Duration
	// SpareSYNs leaves the room for options in SYNs to others.
	SpareSYNs bool
}

// NewForeign attaches a Foreign at the root cgroup until the test ends. The kernel calls programs that are attached
// later after it. It skips the test on a host without cgroup v2.
func NewForeign(t testing.TB, ns *netnstest.NS, s ForeignSettings) *Foreign {
	t.Helper()
	f := Open(t, ns, func(cgroup string) (*Foreign, error) {
		spec, err := loadForeign()
		if err != nil {
			return nil, err
		}
		f := &Foreign{}
		f.link, err = sockops.Load(cgroup, spec, map[string]any{"rate": s.BytesPerSecond, "timeout": uint32(s.UserTimeout.Milliseconds()), "spare_syns": s.SpareSYNs},
			&f.objects, func() *ebpf.Program { return f.objects.Foreign })
		return f, err
	})
	t.Cleanup(func() {
		if err := f.Close(); err != nil {
			t.Error(err)
		}
	})
	return f
}

// Close detaches the program.
func (f *Foreign) Close() error { return errors.Join(f.link.Close(), f.objects.Close()) }

// Segments returns the numbers of sent and received segments with its option.
func (f *Foreign) Segments(t testing.TB) (written, found uint64) {
	t.Helper()
	if err := errors.Join(f.objects.Written.Get(&written), f.objects.Found.Get(&found)); err != nil {
		t.Fatal(err)
	}
	return written, found
}

// Now returns the rate and user timeout of the last socket that sent.
func (f *Foreign) Now(t testing.TB) ForeignSettings {
	t.Helper()
	var rate, timeout uint32
	if err := errors.Join(f.objects.RateNow.Get(&rate), f.objects.TimeoutNow.Get(&timeout)); err != nil {
		t.Fatal(err)
	}
	return ForeignSettings{BytesPerSecond: rate, UserTimeout: time.Duration(timeout) * time.Millisecond}
}

// Occupied makes a cgroup with a program that allows no other beside it. It skips the test on a host where it cannot.
func Occupied(t testing.TB) (cgroup string) {
	t.Helper()
	cgroup = New(t)
	folder, err := sockops.OpenCgroup(cgroup)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { folder.Close() })
	spec, err := loadForeign()
	if err != nil {
		t.Fatal(err)
	}
	var objects foreignObjects
	if err := spec.LoadAndAssign(&objects, nil); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { objects.Close() })
	at := link.RawAttachProgramOptions{Target: int(folder.Fd()), Program: objects.Foreign, Attach: ebpf.AttachCGroupSockOps}
	if err := link.RawAttachProgram(at); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := link.RawDetachProgram(link.RawDetachProgramOptions{Target: at.Target, Program: at.Program, Attach: at.Attach}); err != nil {
			t.Error(err)
		}
	})
	return cgroup
}

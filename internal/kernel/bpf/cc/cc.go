package cc

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"strings"
	"time"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/btf"
	"github.com/cilium/ebpf/link"
	"golang.org/x/sys/unix"

	"github.com/detour-collective/dcol/internal/kernel/bpf/sockops"
)

// Algorithm is a congestion control of this package.
type Algorithm string

const (
	LIA    Algorithm = "lia"
	OLIA   Algorithm = "olia"
	BALIA  Algorithm = "balia"
	WVegas Algorithm = "wvegas"
)

// Algorithms lists all algorithms.
var Algorithms = []Algorithm{LIA, OLIA, BALIA, WVegas}

var loaders = map[Algorithm]func() (*ebpf.CollectionSpec, error){
	LIA: loadLia, OLIA: loadOlia, BALIA: loadBalia, WVegas: loadWvegas,
}

// UnavailableError reports why this host cannot load a program, and how to fix it.
type UnavailableError struct {
	Fix string
	Err error
}

func (e *UnavailableError) Error() string { return fmt.Sprintf("%v (%s)", e.Err, e.Fix) }

func (e *UnavailableError) Unwrap() error { return e.Err }

// nameSize is TCP_CA_NAME_MAX, which includes the final zero.
const nameSize = 16

// Registration is an algorithm that the kernel knows. It ends when it is closed or its process ends. Connections that
// use the algorithm keep it then, and no others can choose it.
type Registration struct {
	name string
	link link.Link
	all  *ebpf.Collection
}

// Name returns the name by which programs choose the algorithm.
func (r *Registration) Name() string { return r.name }

// Acknowledged returns the number of calls of the algorithm for an ACK, and the time that they took. The kernel counts
// them only while its statistics of programs are on (ebpf.EnableStats).
func (r *Registration) Acknowledged() (calls uint64, spent time.Duration, err error) {
	for name, p := range r.all.Programs {
		if !strings.HasSuffix(name, "_cong_avoid") {
			continue
		}
		stats, err := p.Stats()
		if err != nil {
			return 0, 0, fmt.Errorf("read the kernel's statistics: %w", err)
		}
		return stats.RunCount, stats.Runtime, nil
	}
	return 0, 0, errors.New("the algorithm has no program for ACKs")
}

// Close takes the algorithm from the kernel's list.
func (r *Registration) Close() error {
	err := r.link.Close()
	r.all.Close()
	return err
}

// registrations is the greatest number of processes that can register the same algorithm.
const registrations = 100

// Register makes an algorithm known to the kernel, for all network namespaces, under its own name. If another process
// has taken that name, a number is appended, as in lia_2. If the host does not allow this, because of its kernel or the
// process's rights, the error is an [*UnavailableError].
func Register(a Algorithm) (*Registration, error) {
	load, ok := loaders[a]
	if !ok {
		return nil, fmt.Errorf("there is no congestion control %q in dcol: choose one of %v", a, Algorithms)
	}
	for i := 1; i <= registrations; i++ {
		name := string(a)
		if i > 1 {
			name = fmt.Sprintf("%s_%d", a, i)
		}
		spec, err := load()
		if err != nil {
			return nil, fmt.Errorf("read the embedded program: %w", err)
		}
		r, err := register(spec, a, name)
		if err == nil || !errors.Is(err, unix.EEXIST) {
			return r, err
		}
	}
	return nil, fmt.Errorf("register the congestion control %s: %d processes have registered it; end some of them", a, registrations)
}

func register(spec *ebpf.CollectionSpec, a Algorithm, name string) (*Registration, error) {
	if records := spec.Maps["records"]; records != nil {
		records.MaxEntries = max(records.MaxEntries, uint32(os.Getpagesize())) // the kernel takes whole pages
	}
	if err := rename(spec.Maps[string(a)], string(a), name); err != nil {
		return nil, fmt.Errorf("name the congestion control %s: %w", name, err)
	}
	all, err := ebpf.NewCollection(spec)
	if err != nil {
		return nil, forAlgorithm.unavailable(fmt.Errorf("load the congestion control %s: %w", a, err))
	}
	attached, err := link.AttachStructOps(link.StructOpsOptions{Map: all.Maps[string(a)]})
	if err != nil {
		all.Close()
		return nil, forAlgorithm.unavailable(fmt.Errorf("register the congestion control %s: %w", name, err))
	}
	return &Registration{name: name, link: attached, all: all}, nil
}

// rename replaces the name in the bytes of the kernel's structure.
func rename(m *ebpf.MapSpec, from, to string) error {
	if len(to) >= nameSize {
		return fmt.Errorf("the name may have %d letters", nameSize-1)
	}
	if m == nil || len(m.Contents) != 1 {
		return errors.New("the embedded program has no such structure")
	}
	value, ok := m.Contents[0].Value.([]byte)
	if !ok {
		return errors.New("the embedded structure is of an unknown form")
	}
	field := func(name string) []byte { return append([]byte(name), make([]byte, nameSize-len(name))...) }
	at := bytes.Index(value, field(from))
	if at < 0 {
		return errors.New("the embedded structure has no name")
	}
	value = bytes.Clone(value)
	copy(value[at:], field(to))
	m.Contents[0].Value = value
	return nil
}

// fixes has the advice for kernels that cannot load this package's programs, and for processes that may not.
type fixes struct{ kernel, rights string }

const (
	fixKernel = "needs Linux 6.4 or newer with CONFIG_DEBUG_INFO_BTF, CONFIG_BPF_JIT and CONFIG_MPTCP; or choose one of the kernel's own in [[congestion]]"
	// FixRights is the advice if the capabilities of the packaged service are not enough.
	FixRights = "needs CAP_BPF, CAP_PERFMON and CAP_NET_ADMIN, and a kernel whose lockdown allows it; " +
		"docs/security.md shows a drop-in for the packaged service, which has no CAP_PERFMON"
)

var (
	forAlgorithm = fixes{fixKernel, FixRights}
	forChoice    = fixes{
		"needs Linux 5.19 or newer with CONFIG_BPF_SYSCALL, CONFIG_CGROUP_BPF and CONFIG_DEBUG_INFO_BTF; tested from 6.1 on",
		"needs CAP_BPF and CAP_NET_ADMIN, and a kernel whose lockdown allows it",
	}
)

// unavailable adds advice to an error.
func (f fixes) unavailable(err error) error {
	if c, ok := errors.AsType[*sockops.Error](err); ok {
		return &UnavailableError{Fix: c.Fix, Err: c.Err}
	}
	rejected, isRejected := errors.AsType[*ebpf.VerifierError](err)
	switch {
	case errors.Is(err, unix.EEXIST):
		return err
	case isRejected && len(rejected.Log) > 0: // an older verifier refuses what a newer one accepts
		return &UnavailableError{Fix: f.kernel, Err: err}
	case errors.Is(err, unix.EPERM), errors.Is(err, unix.EACCES):
		return &UnavailableError{Fix: f.rights, Err: err}
	case errors.Is(err, btf.ErrNotFound), errors.Is(err, ebpf.ErrNotSupported), errors.Is(err, unix.ENOENT),
		errors.Is(err, unix.EINVAL), errors.Is(err, unix.ENOTSUP):
		return &UnavailableError{Fix: f.kernel, Err: err}
	}
	return &UnavailableError{Fix: "unexpected: please report it with `uname -a`", Err: err}
}

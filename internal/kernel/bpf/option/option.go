package option

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"syscall"
	"time"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/btf"
	"github.com/cilium/ebpf/link"
	"github.com/cilium/ebpf/ringbuf"
	"golang.org/x/sys/unix"

	"github.com/detour-collective/dcol/internal/kernel/bpf/sockops"
	"github.com/detour-collective/dcol/internal/tcpopt"
)

// Config says what this host asks of peers, and what it grants to them.
type Config struct {
	// Cgroup is a folder of the cgroup v2 hierarchy. Empty: its root.
	Cgroup string
	// Ask lists the requests to peers, at most one of each option.
	Ask []tcpopt.Request
	// Accept lists the options that are granted to peers, within Bounds.
	Accept []tcpopt.Option
	Bounds tcpopt.Bounds
	// CongestionNames are the kernel's names of congestion controls that differ from the names in Bounds.
	CongestionNames map[string]string
	// Peers lists the networks with which options are exchanged. Empty: all.
	Peers []netip.Prefix
	// Trusted lists the networks that may ask for an initial window.
	Trusted []netip.Prefix
	// SubflowsAreOthers keeps the calls on for segments of subflows that this host opened, because other programs need
	// them (packages keepalive and sending).
	SubflowsAreOthers bool
}

// Report describes a request of a peer and what became of it, or, if Verdict is tcpopt.Sent, one of this host.
type Report struct {
	Local, Remote netip.AddrPort
	Request       tcpopt.Request
	Verdict       tcpopt.Verdict
	// Granted is the value in force. For a DelayedACK it is the longest delay in microseconds, for other options the
	// request's unit.
	Granted uint32
	// Err is the kernel's error if it refused.
	Err error
}

// UnavailableError reports why this host cannot load the program, and how to fix it.
type UnavailableError struct {
	Fix string
	Err error
}

func (e *UnavailableError) Error() string { return fmt.Sprintf("%v (%s)", e.Err, e.Fix) }

func (e *UnavailableError) Unwrap() error { return e.Err }

// Exchange is the attached program.
type Exchange struct {
	objects optionObjects
	link    link.Link
	reports *ringbuf.Reader
}

// Open attaches the program to the sockets of a cgroup, in the thread's network namespace, until the Exchange is closed
// or its process ends. It affects connections that begin afterwards.
func Open(c Config) (*Exchange, error) {
	settings, err := c.settings()
	if err != nil {
		return nil, err
	}
	spec, err := loadOption()
	if err != nil {
		return nil, fmt.Errorf("read the embedded program: %w", err)
	}
	if err := c.fillMaps(spec); err != nil {
		return nil, err
	}
	e := &Exchange{}
	e.link, err = sockops.Load(c.Cgroup, spec, settings, &e.objects, func() *ebpf.Program { return e.objects.Options })
	if err != nil {
		return nil, unavailable(err)
	}
	if e.reports, err = ringbuf.NewReader(e.objects.Events); err != nil {
		return nil, errors.Join(fmt.Errorf("read the program's reports: %w", err), e.link.Close(), e.objects.Close())
	}
	return e, nil
}

// settings returns the program's variables.
func (c Config) settings() (map[string]any, error) {
	values := make(map[tcpopt.Option]uint32)
	var asks, accepts tcpopt.Option
	for _, r := range c.Ask {
		if asks&r.Option != 0 {
			return nil, fmt.Errorf("%v is asked for twice", r.Option)
		}
		asks |= r.Option
		values[r.Option] = r.Value
	}
	for _, o := range c.Accept {
		accepts |= o
	}
	timeout := tcpopt.UserTimeoutField(time.Duration(values[tcpopt.UserTimeout]) * time.Second)
	return map[string]any{
		"asks": uint32(asks), "accepts": uint32(accepts), "subflows_are_others": c.SubflowsAreOthers,
		"user_timeout_asked": uint32(timeout),
		"user_timeout_least": uint32(c.Bounds.UserTimeoutMin / time.Second),
		"user_timeout_most":  uint32(c.Bounds.UserTimeoutMax / time.Second),
		"congestion_asked":   values[tcpopt.Congestion], "initial_window_asked": values[tcpopt.InitialWindow],
		"initial_window_most": c.Bounds.WindowMax, "delayed_ack_asked": values[tcpopt.DelayedACK],
		"rate_asked": values[tcpopt.Rate], "rate_least": c.Bounds.RateMin,
	}, nil
}

// fillMaps adds the networks and the names of congestion controls to what is loaded.
func (c Config) fillMaps(spec *ebpf.CollectionSpec) error {
	peers := c.Peers
	if len(peers) == 0 {
		peers = []netip.Prefix{netip.PrefixFrom(netip.IPv6Unspecified(), 0)}
	}
	fill := func(m *ebpf.MapSpec, networks []netip.Prefix) error {
		if len(networks) > int(m.MaxEntries) {
			return fmt.Errorf("there are %d networks: at most %d", len(networks), m.MaxEntries)
		}
		for _, n := range networks {
			m.Contents = append(m.Contents, ebpf.MapKV{Key: keyOf(n), Value: uint8(1)})
		}
		return nil
	}
	if err := errors.Join(fill(spec.Maps["peers"], peers), fill(spec.Maps["trusted"], c.Trusted), fill(spec.Maps["inside"], inside)); err != nil {
		return err
	}
	names := spec.Maps["congestions"]
	for _, name := range c.Bounds.Congestions {
		n, ok := tcpopt.CongestionNumber(name)
		if !ok || uint32(n) >= names.MaxEntries {
			return fmt.Errorf("the congestion control %q has no number in the option: choose some of %v", name, tcpopt.CongestionNames())
		}
		if kernel, ok := c.CongestionNames[name]; ok {
			name = kernel
		}
		var field [16]byte // the last one stays 0
		copy(field[:15], name)
		names.Contents = append(names.Contents, ebpf.MapKV{Key: uint32(n), Value: field})
	}
	return nil
}

// networkKey is struct network of framework.h.
type networkKey struct {
	Bits    uint32
	Address [16]byte
}

func keyOf(n netip.Prefix) networkKey {
	bits := n.Bits()
	if n.Addr().Is4() {
		bits += 96
	}
	return networkKey{Bits: uint32(bits), Address: n.Masked().Addr().As16()}
}

// event is struct event of framework.h.
type event struct {
	Local, Remote         [16]byte
	LocalPort, RemotePort uint32
	Option, Verdict       uint32
	Asked, Granted        uint32
	Error                 int32
	_                     uint32
}

// Read waits for the next report. It returns os.ErrClosed after Close. If some thousand reports wait, further ones are
// lost.
func (e *Exchange) Read() (Report, error) {
	record, err := e.reports.Read()
	if errors.Is(err, ringbuf.ErrClosed) {
		return Report{}, os.ErrClosed
	}
	if err != nil {
		return Report{}, fmt.Errorf("read the program's reports: %w", err)
	}
	var v event
	if _, err := binary.Decode(record.RawSample, binary.NativeEndian, &v); err != nil {
		return Report{}, fmt.Errorf("read the program's reports: %w", err)
	}
	address := func(a [16]byte, port uint32) netip.AddrPort {
		return netip.AddrPortFrom(netip.AddrFrom16(a).Unmap(), uint16(port))
	}
	r := Report{
		Local: address(v.Local, v.LocalPort), Remote: address(v.Remote, v.RemotePort),
		Request: tcpopt.Request{Option: tcpopt.Option(v.Option), Value: v.Asked},
		Verdict: tcpopt.Verdict(v.Verdict), Granted: v.Granted,
	}
	if r.Verdict == tcpopt.Sent && r.Request.Option == tcpopt.UserTimeout {
		r.Request.Value = tcpopt.UserTimeoutSeconds(uint16(v.Asked))
	}
	if v.Error != 0 {
		r.Err = syscall.Errno(-v.Error)
	}
	return r, nil
}

// Calls returns roughly how often the program was called. Each call costs time.
func (e *Exchange) Calls() (n uint64, err error) {
	if err = e.objects.Called.Get(&n); err != nil {
		err = fmt.Errorf("read the program's count: %w", err)
	}
	return n, err
}

// GrantedRates returns the map of rates that peers were granted, by socket, for sending.Open.
func (e *Exchange) GrantedRates() *ebpf.Map { return e.objects.GrantedRates }

// Close detaches the program. Connections keep the settings that were granted.
func (e *Exchange) Close() error {
	return errors.Join(e.link.Close(), e.reports.Close(), e.objects.Close())
}

const fixKernel = "needs Linux 5.10 or newer with CONFIG_BPF_SYSCALL, CONFIG_CGROUP_BPF and CONFIG_DEBUG_INFO_BTF; tested from 6.1 on"

// unavailable adds advice to an error, if the kernel's answer allows it.
func unavailable(err error) error {
	if c, ok := errors.AsType[*sockops.Error](err); ok {
		return &UnavailableError{Fix: c.Fix, Err: c.Err}
	}
	rejected, isRejected := errors.AsType[*ebpf.VerifierError](err)
	switch {
	case isRejected && len(rejected.Log) > 0: // an older verifier refuses what a newer one accepts
		return &UnavailableError{Fix: fixKernel, Err: err}
	case errors.Is(err, unix.EPERM), errors.Is(err, unix.EACCES):
		return &UnavailableError{Fix: "needs CAP_BPF and CAP_NET_ADMIN, and a kernel whose lockdown allows it", Err: err}
	case errors.Is(err, btf.ErrNotFound), errors.Is(err, ebpf.ErrNotSupported), errors.Is(err, unix.EINVAL), errors.Is(err, unix.ENOENT):
		return &UnavailableError{Fix: fixKernel, Err: err}
	}
	return &UnavailableError{Fix: "unexpected: please report it with `uname -a`", Err: err}
}

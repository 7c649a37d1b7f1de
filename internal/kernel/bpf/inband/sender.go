package inband

import (
	"errors"
	"fmt"
	"io"
	"net/netip"
	"os"
	"sync"
	"time"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/detour-collective/dcol/internal/kernel/bpf/sockops"
	"github.com/detour-collective/dcol/internal/kernel/bpf/tcfilter"
)

// SenderConfig selects the sockets whose SYNs may carry the option.
type SenderConfig struct {
	// Cgroup is a folder of the cgroup v2 hierarchy. A socket belongs to the cgroup of the process that made it,
	// and all subflows of an MPTCP connection to that of its first socket. Empty: the root, which covers all.
	Cgroup string
}

// Sender writes the option into expected SYNs of one network namespace: that of the thread that opened it. Its
// methods may be called from any goroutine.
type Sender struct {
	objects sendObjects
	link    link.Link
	proc    *os.File // /proc/sys/net/ipv4 of the namespace

	mu     sync.Mutex // of filter
	filter tcfilter.Filter
}

// OpenSender attaches the program that writes the option. It works until the Sender is closed or garbage collected,
// or its process ends.
func OpenSender(config SenderConfig) (_ *Sender, err error) {
	s := &Sender{}
	defer func() {
		if err != nil {
			_ = s.release()
		}
	}()
	if s.proc, err = os.Open("/proc/sys/net/ipv4"); err != nil {
		return nil, fmt.Errorf("open the namespace's TCP settings: %w", err)
	}
	cookie, err := sockops.NamespaceCookie()
	if err != nil {
		return nil, unavailable(err)
	}
	cgroup, err := sockops.OpenCgroup(config.Cgroup)
	if err != nil {
		return nil, unavailable(err)
	}
	defer cgroup.Close()
	spec, err := loadSend()
	if err != nil {
		return nil, fmt.Errorf("read the embedded programs of the sender: %w", err)
	}
	if err := spec.Variables["netns_cookie"].Set(cookie); err != nil {
		return nil, fmt.Errorf("tell the sender's programs their namespace: %w", err)
	}
	if err := spec.LoadAndAssign(&s.objects, nil); err != nil {
		return nil, unavailable(fmt.Errorf("load the sender's programs: %w", err))
	}
	if s.link, err = sockops.Attach(cgroup, s.objects.SendOption, ebpf.AttachCGroupSockOps); err != nil {
		return nil, unavailable(err)
	}
	handle, err := netlink.NewHandle(unix.NETLINK_ROUTE)
	if err != nil {
		return nil, fmt.Errorf("open rtnetlink: %w", err)
	}
	s.filter = newFilter(handle, tcfilter.AtEgress, nameSend, s.objects.SendEthernet, s.objects.SendHeaderless)
	return s, nil
}

// Attach adds the authenticator to SYNs that leave over exactly these interfaces, given by their indexes. Call it
// again when they change. A missing interface is not an error. An error that wraps *InterfaceError concerns one
// interface; the others are attached.
func (s *Sender) Attach(interfaces []int) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.filter.Set(interfaces)
}

// Timestamps reports whether new connections of the namespace have TCP timestamps, which the authenticator needs.
func (s *Sender) Timestamps() (bool, error) {
	const name = "tcp_timestamps"
	fd, err := unix.Openat(int(s.proc.Fd()), name, unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return false, fmt.Errorf("open net.ipv4.%s: %w", name, err)
	}
	file := os.NewFile(uintptr(fd), name)
	defer file.Close()
	value, err := io.ReadAll(file)
	if err != nil {
		return false, fmt.Errorf("read net.ipv4.%s: %w", name, err)
	}
	return len(value) > 0 && value[0] != '0', nil
}

// joinLife is the time for which a join is expected unless Forget is called. By default the kernel gives up a SYN after
// about two minutes.
const joinLife = 3 * time.Minute

// Expect makes the SYNs of a join carry the option, until the connection is established, given up or forgotten, or
// joinLife has passed. Call it before the first SYN leaves. It fails with ErrNoTimestamps if there is no room for
// the authenticator.
func (s *Sender) Expect(j Join) error {
	if err := j.validate(); err != nil {
		return err
	}
	_, boot, err := clocks()
	if err != nil {
		return err
	}
	value := sendJoin{Server: wire32(j.Server), Expires: uint64(boot + joinLife)}
	if j.Auth != nil {
		ok, err := s.Timestamps()
		if err != nil {
			return err
		}
		if !ok {
			return ErrNoTimestamps
		}
		value.Client = wire32(j.Auth.Client)
		value.Key.Half = j.Auth.Key.halves()
		value.Authenticate = true
		value.ClientPort = j.Auth.ClientPort
	}
	if err := s.objects.Joins.Put(tuple(j.Local, j.Remote), value); err != nil {
		return fmt.Errorf("expect the join from %v to %v: %w", j.Local, j.Remote, err)
	}
	return nil
}

// Forget ends the expectation of a join, whatever its outcome. An unknown join is not an error. unmarked reports
// whether the join was expected but all its SYNs left without the option, as those of programs outside the sender's
// cgroup do.
func (s *Sender) Forget(local, remote netip.AddrPort) (unmarked bool) {
	if !local.Addr().Unmap().Is4() || !remote.Addr().Unmap().Is4() {
		return false
	}
	var join sendJoin
	// Other errors than "not there" can only mean that the map is closed.
	err := s.objects.Joins.LookupAndDelete(tuple(local, remote), &join)
	return err == nil && !join.Written
}

// Close detaches everything.
func (s *Sender) Close() error {
	err := s.Attach(nil)
	return errors.Join(err, s.release())
}

func (s *Sender) release() error {
	var errs []error
	if s.link != nil {
		errs = append(errs, s.link.Close())
	}
	if s.filter.Handle != nil {
		s.filter.Handle.Close()
	}
	if s.proc != nil {
		errs = append(errs, s.proc.Close())
	}
	return errors.Join(append(errs, s.objects.Close())...)
}

func tuple(local, remote netip.AddrPort) sendTuple {
	return sendTuple{
		Addresses: uint64(wire32(local.Addr())) | uint64(wire32(remote.Addr()))<<32,
		Ports:     sockops.Ports(local, remote),
	}
}

package mptcptest

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"syscall"

	"github.com/detour-collective/dcol/internal/kernel/mptcp"
)

// refuse returns the kernel's error for a command, with its message.
func refuse(op string, token uint32, local, remote netip.AddrPort, errno syscall.Errno, message string) error {
	return &mptcp.CommandError{Op: op, Token: token, Local: local, Remote: remote, Errno: errno, Message: message}
}

// managed returns the connection if commands may change it.
func (f *Fake) managed(op string, token uint32, local, remote netip.AddrPort) (*conn, error) {
	c := f.conns[token]
	if c == nil {
		return nil, refuse(op, token, local, remote, syscall.EINVAL, "invalid token")
	}
	if !c.userspace {
		return nil, refuse(op, token, local, remote, syscall.EINVAL, "userspace PM not selected")
	}
	return c, nil
}

// CreateSubflow implements mptcp.Kernel.
func (f *Fake) CreateSubflow(s mptcp.NewSubflow) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	const op = "create subflow"
	c, err := f.managed(op, s.Token, s.Local, s.Remote)
	if err != nil {
		return err
	}
	fail := func(errno syscall.Errno, message string) error {
		return refuse(op, s.Token, s.Local, s.Remote, errno, message)
	}
	if s.Local.Addr().Is4() != s.Remote.Addr().Is4() || c.Remote.Addr().Is4() && s.Local.Addr().Is6() {
		return fail(syscall.EINVAL, "families mismatch")
	}
	if !c.remember(entry{s.Local, s.LocalID}) {
		return fail(syscall.EINVAL, "did not match address and id")
	}
	if f.gone[s.Local.Addr()] {
		c.forget(s.Local.Addr())
		return fail(syscall.EADDRNOTAVAIL, "connect error: -99")
	}
	if s.Local.Port() == 0 {
		s.Local = netip.AddrPortFrom(s.Local.Addr(), f.nextPort())
	}
	if f.inUse(s.Local, s.Remote) {
		c.forget(s.Local.Addr())
		return fail(syscall.EADDRINUSE, "connect error: -98")
	}
	c.Subflows = append(c.Subflows, mptcp.Subflow{
		Token: s.Token, Local: s.Local, Remote: s.Remote, LocalID: s.LocalID, IfIndex: s.IfIndex,
		State: mptcp.StateSynSent, BackupLocal: s.Backup,
	})
	f.join(c, len(c.Subflows)-1)
	return nil
}

// inUse reports whether any connection has these ends, or a program has the local one.
func (f *Fake) inUse(local, remote netip.AddrPort) bool {
	if f.occupied[local] {
		return true
	}
	for _, c := range f.conns {
		if c.find(local, remote) >= 0 {
			return true
		}
	}
	return false
}

// join determines the outcome of a new subflow. A server that has reached its limit lets the subflow come up and
// then resets it.
func (f *Fake) join(c *conn, i int) {
	s := &c.Subflows[i]
	switch f.ways[s.Remote] {
	case Silent:
		return
	case Refused:
		f.end(c, i, syscall.ECONNREFUSED)
		return
	}
	extra := 0
	for _, other := range c.Subflows {
		if !other.Initial && other.State == mptcp.StateEstablished {
			extra++
		}
	}
	s.State, s.FullyEstablished = mptcp.StateEstablished, true
	f.emit(subflowEvent(mptcp.SubflowEstablished, *s))
	if extra >= f.limit {
		f.end(c, i, 0)
	}
}

// end removes subflow i and sends an event.
func (f *Fake) end(c *conn, i int, err syscall.Errno) {
	ev := subflowEvent(mptcp.SubflowClosed, c.Subflows[i])
	ev.Err = err
	c.Subflows = slices.Delete(c.Subflows, i, i+1)
	f.emit(ev)
}

func subflowEvent(kind mptcp.EventKind, s mptcp.Subflow) mptcp.Event {
	return mptcp.Event{
		Kind: kind, Token: s.Token, Local: s.Local, Remote: s.Remote,
		LocalID: s.LocalID, RemoteID: s.RemoteID, Backup: s.BackupRemote, IfIndex: s.IfIndex,
	}
}

// DestroySubflow implements mptcp.Kernel.
func (f *Fake) DestroySubflow(token uint32, local, remote netip.AddrPort) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	const op = "destroy subflow"
	c, err := f.managed(op, token, local, remote)
	if err != nil {
		return err
	}
	i := c.find(local, remote)
	if i < 0 {
		return refuse(op, token, local, remote, syscall.ESRCH, "subflow not found")
	}
	c.forget(local.Addr())
	if s := &c.Subflows[i]; s.State == mptcp.StateSynSent {
		s.Remote = netip.AddrPortFrom(remote.Addr(), 0)
		f.end(c, i, syscall.ECONNRESET)
		return nil
	}
	f.end(c, i, 0)
	return nil
}

// SetBackup implements mptcp.Kernel.
func (f *Fake) SetBackup(token uint32, local, remote netip.AddrPort, backup bool) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	const op = "set priority of subflow"
	c, err := f.managed(op, token, local, remote)
	if err != nil {
		return err
	}
	i := c.find(local, remote)
	if i < 0 {
		return refuse(op, token, local, remote, syscall.EINVAL, "subflow not found")
	}
	c.Subflows[i].BackupLocal = backup
	return nil
}

// Announce implements mptcp.Kernel.
func (f *Fake) Announce(token uint32, local netip.AddrPort, localID uint8) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	const op = "announce address"
	c, err := f.managed(op, token, local, netip.AddrPort{})
	if err != nil {
		return err
	}
	if localID == 0 {
		return refuse(op, token, local, netip.AddrPort{}, syscall.EINVAL, "invalid addr id or flags")
	}
	if !c.remember(entry{local, localID}) {
		return refuse(op, token, local, netip.AddrPort{}, syscall.EINVAL, "did not match address and id")
	}
	return nil
}

// RemoveAddress implements mptcp.Kernel.
func (f *Fake) RemoveAddress(token uint32, localID uint8) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	op := fmt.Sprintf("remove address %d", localID)
	none := netip.AddrPort{}
	c, err := f.managed(op, token, none, none)
	if err != nil {
		return err
	}
	known := slices.ContainsFunc(c.entries, func(e entry) bool { return e.id == localID })
	if localID != 0 && !known { // the kernel keeps the initial subflow's id also after its end
		return refuse(op, token, none, none, syscall.EINVAL, fmt.Sprintf("address with id %d not found", localID))
	}
	c.entries = slices.DeleteFunc(c.entries, func(e entry) bool { return e.id == localID })
	for i := len(c.Subflows) - 1; i >= 0; i-- {
		if s := c.Subflows[i]; s.LocalID == localID && s.State == mptcp.StateEstablished {
			f.end(c, i, 0)
		}
	}
	return nil
}

// Connections implements mptcp.Kernel.
func (f *Fake) Connections() ([]mptcp.Connection, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	all := make([]mptcp.Connection, 0, len(f.conns))
	for _, c := range f.conns {
		seen := c.Connection
		seen.Subflows = slices.SortedFunc(slices.Values(c.Subflows), func(a, b mptcp.Subflow) int {
			return cmp.Or(a.Local.Compare(b.Local), a.Remote.Compare(b.Remote))
		})
		all = append(all, seen)
	}
	slices.SortFunc(all, func(a, b mptcp.Connection) int { return cmp.Compare(a.Token, b.Token) })
	return all, nil
}

// Fallbacks implements mptcp.Kernel. No connection of a Fake falls back.
func (f *Fake) Fallbacks(func(*mptcp.Connection) bool) error { return nil }

// Subflows implements mptcp.Kernel.
func (f *Fake) Subflows(yield func(*mptcp.Subflow) bool) error {
	all, err := f.Connections()
	if err != nil {
		return err
	}
	for _, c := range all {
		for i := range c.Subflows {
			if !yield(&c.Subflows[i]) {
				return nil
			}
		}
	}
	return nil
}

// ChecksumErrors implements mptcp.Kernel.
func (f *Fake) ChecksumErrors() (uint64, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.checksumErrors, nil
}

// Progress implements mptcp.Kernel.
func (f *Fake) Progress(token uint32) (mptcp.Progress, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	c := f.conns[token]
	if c == nil {
		return mptcp.Progress{}, fmt.Errorf("look up connection %08x: %w", token, mptcp.ErrNoConnection)
	}
	return mptcp.Progress{Received: c.received}, nil
}

// Open implements mptcp.Kernel.
func (f *Fake) Open(token uint32) (bool, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	c := f.conns[token]
	if c == nil {
		return false, fmt.Errorf("look up connection %08x: %w", token, mptcp.ErrNoConnection)
	}
	return !c.halfOpen, nil
}

// Subflow implements mptcp.Kernel.
func (f *Fake) Subflow(local, remote netip.AddrPort) (mptcp.Subflow, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, c := range f.conns {
		if i := c.find(local, remote); i >= 0 {
			return c.Subflows[i], nil
		}
	}
	return mptcp.Subflow{}, fmt.Errorf("look up subflow from %v to %v: %w", local, remote, mptcp.ErrNoSubflow)
}

func (c *conn) find(local, remote netip.AddrPort) int {
	return slices.IndexFunc(c.Subflows, func(s mptcp.Subflow) bool { return s.Local == local && s.Remote == remote })
}

// remember adds an entry. It returns false if the address has another id, or the id another address.
func (c *conn) remember(e entry) bool {
	for _, known := range c.entries {
		if sameAddr, sameID := known.local == e.local, known.id == e.id; sameAddr || sameID {
			return sameAddr && sameID
		}
	}
	c.entries = append(c.entries, e)
	return true
}

// forget drops the first entry of the address, whatever its port and its other users, as the kernel does.
func (c *conn) forget(a netip.Addr) {
	if i := slices.IndexFunc(c.entries, func(e entry) bool { return e.local.Addr() == a }); i >= 0 {
		c.entries = slices.Delete(c.entries, i, i+1)
	}
}

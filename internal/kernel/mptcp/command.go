package mptcp

import (
	"errors"
	"fmt"
	"net/netip"
	"syscall"

	"github.com/mdlayher/genetlink"
	"github.com/mdlayher/netlink"
)

// address is a local or remote address in the form of the path manager's commands.
type address struct {
	netip.AddrPort
	mapped  bool // write an IPv4 address as ::ffff:a.b.c.d
	id      uint8
	flags   uint32
	ifIndex int
}

func (a address) encode(e *netlink.AttributeEncoder) error {
	ip := a.Addr()
	if ip.Is4() && !a.mapped {
		v4 := ip.As4()
		e.Uint16(addrFamily, syscall.AF_INET)
		e.Bytes(addrIP4, v4[:])
	} else {
		v6 := ip.As16()
		e.Uint16(addrFamily, syscall.AF_INET6)
		e.Bytes(addrIP6, v6[:])
	}
	if a.id != 0 {
		e.Uint8(addrID, a.id)
	}
	if a.Port() != 0 {
		e.Uint16(addrPort, a.Port())
	}
	if a.flags != 0 {
		e.Uint32(addrFlags, a.flags)
	}
	if a.ifIndex != 0 {
		e.Int32(addrIfIndex, int32(a.ifIndex))
	}
	return nil
}

// CreateSubflow implements Kernel.
func (n *Namespace) CreateSubflow(s NewSubflow) error {
	if s.IfIndex != 0 && n.ignoresJoinFlags {
		return fmt.Errorf("create subflow on interface %d: %w", s.IfIndex, unsupported(JoinFlags.Feature))
	}
	local := address{AddrPort: unmap(s.Local), id: s.LocalID, ifIndex: s.IfIndex}
	if s.Backup {
		local.flags = addrFlagBackup
	}
	err := n.command("create subflow", cmdSubflowCreate, s.Token, local, address{AddrPort: unmap(s.Remote)})
	if err != nil || !s.Backup || !n.ignoresJoinFlags {
		return err
	}
	return n.makeBackup(s)
}

// makeBackup makes a backup of a subflow that was just created. Its SYN is already sent. The peer receives the priority
// with the next packet, before any data.
func (n *Namespace) makeBackup(s NewSubflow) error {
	err := n.SetBackup(s.Token, s.Local, s.Remote, true)
	if err == nil || errors.Is(err, ErrNoSubflow) || errors.Is(err, ErrNoConnection) {
		return nil // an event reports if the subflow is gone
	}
	// The subflow is destroyed, because it must not carry data that only the others may carry.
	return errors.Join(err, n.DestroySubflow(s.Token, s.Local, s.Remote))
}

// DestroySubflow implements Kernel.
func (n *Namespace) DestroySubflow(token uint32, local, remote netip.AddrPort) error {
	return n.onSubflow("destroy subflow", cmdSubflowDestroy, token, local, remote, 0)
}

// SetBackup implements Kernel.
func (n *Namespace) SetBackup(token uint32, local, remote netip.AddrPort, backup bool) error {
	var flags uint32
	if backup {
		flags = addrFlagBackup
	}
	err := n.onSubflow("set priority of subflow", cmdSetFlags, token, local, remote, flags)
	var failed *CommandError
	if errors.As(err, &failed) && failed.Errno == syscall.EINVAL && failed.Message == "" {
		failed.Message = n.whatIsMissing(token, local, remote)
	}
	return err
}

// whatIsMissing returns the reason why a priority was not set, in the words of newer kernels. Kernels up to 6.12 give
// none.
func (n *Namespace) whatIsMissing(token uint32, local, remote netip.AddrPort) (message string) {
	message = "invalid token"
	err := n.Subflows(func(s *Subflow) bool {
		if s.Token != token {
			return true
		}
		message = "subflow not found"
		if s.Local == unmap(local) && s.Remote == unmap(remote) {
			message = ""
		}
		return message != ""
	})
	if err != nil {
		return ""
	}
	return message
}

// onSubflow runs a command on an existing subflow. If an IPv6 socket is connected to an IPv4 address, the kernel finds
// its first subflow only by mapped addresses, and the others only by IPv4 addresses. Nothing tells which of them the
// subflow is, so onSubflow tries both.
func (n *Namespace) onSubflow(op string, cmd uint8, token uint32, local, remote netip.AddrPort, flags uint32) error {
	l, r := address{AddrPort: unmap(local), flags: flags}, address{AddrPort: unmap(remote)}
	err := n.command(op, cmd, token, l, r)
	if err == nil || !l.Addr().Is4() || errors.Is(err, ErrNoConnection) || errors.Is(err, ErrKernelPM) {
		return err
	}
	l.mapped, r.mapped = true, true
	if n.command(op, cmd, token, l, r) == nil {
		return nil
	}
	return err
}

// Announce implements Kernel.
func (n *Namespace) Announce(token uint32, local netip.AddrPort, localID uint8) error {
	return n.command("announce address", cmdAnnounce, token,
		address{AddrPort: unmap(local), id: localID, flags: addrFlagSignal}, address{})
}

// RemoveAddress implements Kernel.
func (n *Namespace) RemoveAddress(token uint32, localID uint8) error {
	e := netlink.NewAttributeEncoder()
	e.Uint32(attrToken, token)
	e.Uint8(attrLocalID, localID)
	return n.execute(e, cmdRemove, &CommandError{Op: fmt.Sprintf("remove address %d", localID), Token: token})
}

func (n *Namespace) command(op string, cmd uint8, token uint32, local, remote address) error {
	e := netlink.NewAttributeEncoder()
	e.Uint32(attrToken, token)
	e.Nested(attrLocal, local.encode)
	if remote.IsValid() {
		e.Nested(attrRemote, remote.encode)
	}
	return n.execute(e, cmd, &CommandError{Op: op, Token: token, Local: local.AddrPort, Remote: remote.AddrPort})
}

// execute sends one command and waits for its acknowledgement. If the kernel refuses the command, it completes failed
// and returns it.
func (n *Namespace) execute(e *netlink.AttributeEncoder, cmd uint8, failed *CommandError) error {
	attrs, err := e.Encode()
	if err != nil {
		return fmt.Errorf("%s: encode command: %w", failed.Op, err)
	}
	msg := genetlink.Message{Header: genetlink.Header{Command: cmd, Version: familyVersion}, Data: attrs}
	_, err = n.commands.Execute(msg, n.family, netlink.Request|netlink.Acknowledge)
	if err == nil {
		return nil
	}
	if errno, message := refusal(err); errno != 0 {
		failed.Errno, failed.Message = errno, message
		return failed
	}
	return fmt.Errorf("%s: %w", failed.Op, err)
}

func unmap(a netip.AddrPort) netip.AddrPort {
	return netip.AddrPortFrom(a.Addr().Unmap(), a.Port())
}

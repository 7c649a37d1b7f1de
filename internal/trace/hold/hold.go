// Package hold keeps this host's TCP from resetting connections that the kernel does not know: a trace begins them
// by raw sockets, and the kernel refuses the server's answers. The rules belong to the process: the kernel removes
// them when it ends, however it ends.
package hold

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"os"

	"github.com/google/nftables"
	"github.com/google/nftables/binaryutil"
	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"
)

// Flow is a connection, from this host.
type Flow struct {
	Source      uint16 // port
	Destination netip.AddrPort
}

// Hold is a table of rules. It lives until Close.
type Hold struct {
	conn  *nftables.Conn
	table *nftables.Table
	chain *nftables.Chain
}

// ErrRight means that the process may not change nftables.
var ErrRight = errors.New("rules of nftables need root or CAP_NET_ADMIN: run the command with sudo")

// prefix begins the names of tables. The process's number and a random one follow, because a process may have several
// tables, each with its own owner.
const prefix = "dcol_trace_"

// New makes a table without rules.
func New() (*Hold, error) {
	conn, err := nftables.New(nftables.AsLasting())
	if err != nil {
		return nil, fmt.Errorf("open nftables: %w", err)
	}
	h := &Hold{conn: conn}
	// The kernel removes a table with an owner together with the owner's socket.
	h.table = conn.AddTable(&nftables.Table{
		Name: fmt.Sprintf("%s%d_%08x", prefix, os.Getpid(), rand.Uint32()), Family: nftables.TableFamilyINet, Flags: nftables.TableFlagOwner,
	})
	h.chain = conn.AddChain(&nftables.Chain{
		Name: "output", Table: h.table, Type: nftables.ChainTypeFilter,
		Hooknum: nftables.ChainHookOutput, Priority: nftables.ChainPriorityFilter,
	})
	if err := h.flush(); err != nil {
		return nil, errors.Join(err, h.Close())
	}
	return h, nil
}

func (h *Hold) flush() error {
	err := h.conn.Flush()
	if errors.Is(err, unix.EPERM) || errors.Is(err, unix.EACCES) {
		return ErrRight
	}
	if err != nil {
		return fmt.Errorf("hold back the kernel's resets: set nftables rules: %w", err)
	}
	return nil
}

// Add holds back the kernel's resets of a connection. Those of programs pass.
func (h *Hold) Add(f Flow) error {
	const (
		sourcePort      = 0
		destinationPort = 2
		flags           = 13
		reset           = 0x04
	)
	network, address, at := unix.NFPROTO_IPV4, f.Destination.Addr().AsSlice(), uint32(16)
	if !f.Destination.Addr().Is4() {
		network, at = unix.NFPROTO_IPV6, 24
	}
	equal := func(b []byte) expr.Any { return &expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: b} }
	load := func(base expr.PayloadBase, offset, size uint32) expr.Any {
		return &expr.Payload{DestRegister: 1, Base: base, Offset: offset, Len: size}
	}
	match := []expr.Any{
		&expr.Meta{Key: expr.MetaKeyNFPROTO, Register: 1}, equal([]byte{byte(network)}),
		&expr.Meta{Key: expr.MetaKeyL4PROTO, Register: 1}, equal([]byte{unix.IPPROTO_TCP}),
		load(expr.PayloadBaseNetworkHeader, at, uint32(len(address))), equal(address),
		load(expr.PayloadBaseTransportHeader, sourcePort, 2), equal(binaryutil.BigEndian.PutUint16(f.Source)),
		load(expr.PayloadBaseTransportHeader, destinationPort, 2), equal(binaryutil.BigEndian.PutUint16(f.Destination.Port())),
		load(expr.PayloadBaseTransportHeader, flags, 1),
		&expr.Bitwise{SourceRegister: 1, DestRegister: 1, Len: 1, Mask: []byte{reset}, Xor: []byte{0}}, equal([]byte{reset}),
	}
	// Only packets of programs have a user.
	ofProgram := []expr.Any{
		&expr.Meta{Key: expr.MetaKeySKUID, Register: 1},
		&expr.Cmp{Op: expr.CmpOpGte, Register: 1, Data: []byte{0, 0, 0, 0}},
		&expr.Verdict{Kind: expr.VerdictAccept},
	}
	h.conn.AddRule(&nftables.Rule{Table: h.table, Chain: h.chain, Exprs: append(append([]expr.Any(nil), match...), ofProgram...)})
	h.conn.AddRule(&nftables.Rule{Table: h.table, Chain: h.chain, Exprs: append(match, &expr.Counter{}, &expr.Verdict{Kind: expr.VerdictDrop})})
	return h.flush()
}

// Close removes the rules.
func (h *Hold) Close() error { return h.conn.CloseLasting() }

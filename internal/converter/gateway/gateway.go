// Package gateway leads TCP connections of a LAN's hosts to the relay, if this host is their router. It owns an
// nftables table, and the routing that TPROXY needs. Both work without the agent.
//
//	gateway.go  Gateway: installs the table, changes it, restores it
//	table.go    the table's sets and chains
//	exprs.go    the expressions of the rules
//
// nftables itself learns which servers speak MPTCP. It watches the handshakes of MPTCP connections that pass or that
// this host opens. It leaves UDP alone, and treats only the first packets of TCP connections.
package gateway

import (
	"errors"
	"fmt"
	"math/bits"
	"net/netip"
	"slices"

	"github.com/detour-collective/dcol/internal/converter/choice"
	"github.com/detour-collective/dcol/internal/kernel/netstate"
	"github.com/detour-collective/dcol/internal/kernel/netstate/nft"
	"github.com/detour-collective/dcol/internal/kernel/netstate/nft/match"
)

// Config holds a gateway's settings.
type Config struct {
	Interfaces   []string       // of the LANs
	Exclude      []netip.Prefix // servers whose connections pass untouched
	ExcludePorts []uint16
	// KeepIPv6 makes the relay connect to servers from the IPv6 addresses of the LANs' hosts.
	KeepIPv6 bool
	// Marks are the bits of packet and connection marks that no other program uses. The gateway uses the lowest two.
	// The waypoint role uses the bits, too, and sets the highest in each of its marks.
	Marks uint32
}

// Want describes the connections that a gateway takes. The zero value takes none.
type Want struct {
	Mode choice.Mode
	// Converters reports whether there is a converter. Without one, a server that speaks no MPTCP gains nothing.
	Converters bool
	// Port4 and Port6 are the ports of the relay's transparent listeners on the loopback addresses; 0: there is none.
	Port4, Port6 uint16
}

// UnreachedMark returns the mark (SO_MARK) that the relay gives a taken connection before it resets it, if the connection's
// server was not reached. Connections to that server then pass for choice.UnreachedFor, so that the next one gets the
// server's own answer. marks are those of Config.
func UnreachedMark(marks uint32) uint32 { return Config{Marks: marks}.marks().unreached() }

// Gateway is an installed table. It is not safe for concurrent use.
type Gateway struct {
	config  Config
	want    Want
	table   *nft.Kept
	learned map[string][]nft.Element // servers from an earlier table, to fill the first one; by set
}

// leastMarks is the least number of bits: one for the waypoint's connections and two for the gateway's.
const leastMarks = 3

// Open installs the table in the calling thread's network namespace. It replaces the table that an earlier process has
// left, and keeps the servers in it.
func Open(c Config, w Want) (*Gateway, error) {
	if n := bits.OnesCount32(c.Marks); n < leastMarks {
		return nil, fmt.Errorf("the marks %#x have %d bits, and a gateway needs at least %d: add bits to marks in [waypoint]", c.Marks, n, leastMarks)
	}
	g := &Gateway{config: c, want: w}
	if err := g.deliver(); err != nil {
		return nil, fmt.Errorf("lead the LAN's connections to the relay: %w", err)
	}
	var err error
	if g.learned, err = learned(); err == nil {
		g.table, err = nft.Keep(table, g.build)
	}
	if err != nil {
		return nil, fmt.Errorf("lead the LAN's connections to the relay: %w", err)
	}
	g.learned = nil
	return g, nil
}

// learned returns the servers in the table that is installed.
func learned() (map[string][]nft.Element, error) {
	conn, err := nft.Open()
	if err != nil {
		return nil, err
	}
	all := make(map[string][]nft.Element)
	for _, f := range families {
		for _, s := range []nft.Set{f.speaks, f.plain} {
			list, listErr := conn.Elements(table, s)
			for _, e := range list {
				all[s.Name] = append(all[s.Name], nft.Element{Key: e.Key, Timeout: max(e.Expires, 1)})
			}
			err = errors.Join(err, listErr)
		}
	}
	return all, errors.Join(err, conn.Close())
}

// Set changes which connections are taken. What was learned remains.
func (g *Gateway) Set(w Want) error {
	if w == g.want {
		return nil
	}
	before := g.want
	g.want = w
	err := g.table.Commit("change what the gateway takes", func(tx *nft.Tx) {
		for _, c := range g.decisions() {
			tx.ReplaceRules(table, c)
		}
	})
	if err != nil {
		g.want = before // so that the next Set tries again
	}
	return err
}

// Exclude changes the servers and ports whose connections pass untouched, at once for all connections that begin. Those
// that the relay has stay with it. What was learned remains.
func (g *Gateway) Exclude(networks []netip.Prefix, portNumbers []uint16) error {
	if slices.Equal(networks, g.config.Exclude) && slices.Equal(portNumbers, g.config.ExcludePorts) {
		return nil
	}
	before := g.config
	g.config.Exclude, g.config.ExcludePorts = networks, portNumbers
	err := g.table.Commit("change what the gateway excludes", func(tx *nft.Tx) {
		for _, s := range []nft.Set{ports, families[0].excluded, families[1].excluded} {
			tx.FlushSet(table, s)
		}
		g.addExcluded(tx)
	})
	if err != nil {
		g.config = before // so that the next Exclude tries again
	}
	return err
}

// Removed returns a channel that receives when another program has removed the table or some of its rules. If that
// happens again and again, it receives less and less often.
func (g *Gateway) Removed() <-chan struct{} { return g.table.Removed() }

// Check restores what other programs have removed, such as a firewall that flushes all tables. If only rules were
// removed, the learned servers remain.
func (g *Gateway) Check() (restored bool, err error) {
	intact, err := g.table.Intact()
	if err == nil && !intact {
		if g.learned, err = learned(); err == nil {
			restored, err = true, g.table.Install()
		}
		g.learned = nil
	}
	return restored, errors.Join(err, g.deliver())
}

// Close leaves the table to the next process.
func (g *Gateway) Close() error { return g.table.Release() }

// Remove removes what Open made. The relay should end the connections that it has taken.
func (g *Gateway) Remove() error { return errors.Join(g.table.Close(), netstate.RemoveDelivery()) }

// CleanUp removes all traces of a gateway from the calling thread's network namespace. It may be called repeatedly.
func CleanUp() error { return errors.Join(nft.RemoveTable(table), netstate.RemoveDelivery()) }

// deliver makes packets of taken connections reach the relay's sockets.
func (g *Gateway) deliver() error {
	m := g.config.marks()
	// All of our bits are compared, because a converter on this host also marks what it sends for a member.
	return netstate.SetDelivery(m.taken, m.all)
}

func (g *Gateway) build(tx *nft.Tx) {
	four, six := families[0], families[1]
	for _, s := range []nft.Set{lan, ports, four.excluded, six.excluded, four.speaks, six.speaks, four.plain, six.plain, four.unreached, six.unreached} {
		tx.AddSet(table, s)
	}
	var names []nft.Element
	for _, name := range g.config.Interfaces {
		names = append(names, nft.Element{Key: ifname(name)})
	}
	tx.AddElements(table, lan, names)
	for _, f := range families {
		tx.AddElements(table, f.speaks, g.learned[f.speaks.Name])
		tx.AddElements(table, f.plain, g.learned[f.plain.Name])
	}
	g.addExcluded(tx)
	tx.AddChains(table, append(g.config.chains(), g.decisions()...))
}

func (g *Gateway) addExcluded(tx *nft.Tx) {
	tx.AddElements(table, ports, match.Ports(slices.Concat(choice.NeverPorts, g.config.ExcludePorts)))
	for _, f := range families {
		tx.AddElements(table, f.excluded, match.Prefixes(f.Of(choice.ExcludedNetworks(g.config.Exclude))))
	}
}

func (g *Gateway) decisions() []nft.Chain { return decisions(g.config.marks(), g.want) }

// marks are the gateway's values of packet and connection marks.
type marks struct {
	all     uint32 // bits that are ours or the waypoint's
	taken   uint32 // the relay has this connection; also of its packets
	watched uint32 // the answer to this SYN will show whether the server speaks MPTCP
}

func (m marks) both() uint32 { return m.taken | m.watched }

// kept is the mark of the relay's connections from addresses of the LANs' hosts. Answers on these connections go to
// the relay.
func (m marks) kept() uint32 { return m.both() }

// unreached is the mark of the packets of a taken connection whose server was not reached. No other packets have both bits.
func (m marks) unreached() uint32 { return m.both() }

func (c Config) marks() marks {
	taken := c.Marks & -c.Marks
	rest := c.Marks &^ taken
	return marks{all: c.Marks, taken: taken, watched: rest & -rest}
}

package dissect

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/detour-collective/dcol/internal/analyse"
	"github.com/detour-collective/dcol/internal/analyse/capture"
	"github.com/detour-collective/dcol/internal/analyse/track"
	"github.com/detour-collective/dcol/internal/packet/tshark"
)

// tshark's numbers of TCP and MPTCP connections.
const (
	streamField     = "tcp.stream"
	connectionField = "mptcp.stream"
)

// grouping is tshark's: TCP connections by number, and their MPTCP connections.
type grouping map[string]*stream

type stream struct {
	ends       string
	connection string
	tokens     []string
}

func (g grouping) add(row tshark.Row) {
	s := g[row[streamField]]
	if s == nil {
		s = &stream{ends: between(row["ip.src"]+row["ipv6.src"], row["tcp.srcport"], row["ip.dst"]+row["ipv6.dst"], row["tcp.dstport"])}
		g[row[streamField]] = s
	}
	if c := row[connectionField]; c != "" {
		s.connection = c
	}
	if token := row["mptcp.expected_token"]; token != "" && !slices.Contains(s.tokens, token) {
		s.tokens = append(s.tokens, token)
	}
}

// between names a TCP connection by its ends, whichever comes first.
func between(source, sourcePort, destination, destinationPort string) string {
	ends := []string{source + " " + sourcePort, destination + " " + destinationPort}
	slices.Sort(ends)
	return strings.Join(ends, " - ")
}

// connection is an MPTCP connection by either program.
type connection struct{ subflows, tokens []string }

func (c *connection) String() string {
	slices.Sort(c.subflows)
	slices.Sort(c.tokens)
	return fmt.Sprintf("%v with the tokens %v", c.subflows, c.tokens)
}

// connections returns tshark's MPTCP connections. It numbers those whose keys of both sides it has seen.
func (g grouping) connections() map[string]*connection {
	all := map[string]*connection{}
	for _, s := range g {
		if s.connection == "" {
			continue
		}
		c := all[s.connection]
		if c == nil {
			c = new(connection)
			all[s.connection] = c
		}
		c.subflows = append(c.subflows, s.ends)
		c.tokens = append(c.tokens, s.tokens...)
	}
	return all
}

// idle is longer than any silence in a capture of the lab.
const idle = time.Hour

// connections compares which subflows and tokens each connection has.
func (r *Result) connections(ctx context.Context, file string, theirs grouping) error {
	files, err := capture.Open([]string{file})
	if err != nil {
		return err
	}
	defer files.Close()
	ours := map[string]int{}
	_, err = analyse.Run(ctx, files, analyse.Options{Idle: idle, Connections: 1_000_000, Workers: 1, Done: func(_ int, record *track.Record) {
		if record.Midway || record.Fallback != nil {
			return
		}
		ours[connectionOf(record).String()]++
	}})
	if err != nil {
		return err
	}
	for _, c := range theirs.connections() {
		name := c.String()
		if len(c.tokens) < 2 {
			continue // it fell back, or began before the capture
		}
		r.Connections++
		if ours[name]--; ours[name] < 0 {
			r.differ("tshark has a connection of %s", name)
		}
	}
	for _, name := range slices.Sorted(maps.Keys(ours)) {
		if ours[name] > 0 {
			r.differ("dcol has a connection of %s", name)
		}
	}
	return nil
}

func connectionOf(record *track.Record) *connection {
	c := new(connection)
	for _, token := range record.Tokens {
		c.tokens = append(c.tokens, strconv.FormatUint(uint64(token), 10))
	}
	for _, s := range record.Subflows {
		c.subflows = append(c.subflows, between(s.Client.Addr().String(), fmt.Sprint(s.Client.Port()), s.Server.Addr().String(), fmt.Sprint(s.Server.Port())))
	}
	return c
}

package present

import (
	"bytes"
	"encoding/xml"
	"errors"
	"io"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/detour-collective/dcol/internal/paths"
)

func report() Report {
	a := netip.MustParseAddr
	b, c, d, end := a("10.0.1.2"), a("10.0.2.2"), netip.Addr{}, a("10.0.9.2")
	g := &paths.Graph{
		Hops: []paths.Hop{
			{Distance: 1, Vertices: []paths.Vertex{{Addr: b, RTT: time.Millisecond, Probes: 6}}},
			{Distance: 2, Vertices: []paths.Vertex{
				{Addr: c, Before: []netip.Addr{b}, Probes: 6, Translated: true}, {Addr: d, Before: []netip.Addr{b}, Probes: 5},
			}},
			{Distance: 3, Vertices: []paths.Vertex{{Addr: end, Before: []netip.Addr{c, d}, Last: true, Probes: 6}}},
		},
		Reached: true, Probes: 40, Bound: 0.05,
	}
	return Report{
		Name: "server", Source: a("10.0.1.1"), Destination: end, Protocol: "tcp", Port: 443, Graph: g,
		Distinct: []Line{
			{Ports: paths.Ports{Source: 61000, Destination: 443}, Vertices: []netip.Addr{b, c, end}},
			{Ports: paths.Ports{Source: 61001, Destination: 443}, Vertices: []netip.Addr{b, d, end}},
		},
	}
}

const text = `Paths to server (10.0.9.2): TCP port 443.

hop      address    round trip  from
  1  a   10.0.1.2       1.0 ms
  2  b   10.0.2.2               a
     c   no answer              a
  3  d   10.0.9.2               b c

2 paths, found by 40 packets; any other was missed with a probability of at most 5 %.
Source ports that lead to distinct paths:
  61000  a b d
  61001  a c d
Note: a NAT before hop 2 changes ports: routers behind it see others than those above
`

func TestText(t *testing.T) {
	var b bytes.Buffer
	if err := Text(&b, report()); err != nil {
		t.Fatal(err)
	}
	if b.String() != text {
		t.Errorf("got\n%s\nwant\n%s", b.String(), text)
	}
}

const measuredText = `Source ports that lead to distinct paths:
   port    lost         round trip: least, median, most
  61000  1 of 20      1.0  2.0  30.0 ms                a b d
  61001  20 of 20     no answer                        a c d
The connection from port 40000 shares its path with probes from:
  61002  a b d
`

// TestMeasured checks the output of loss and round trips for each path, and of probes that share a session's path.
func TestMeasured(t *testing.T) {
	r := report()
	r.Distinct[0].Quality = &paths.Quality{Sent: 20, Lost: 1, Least: time.Millisecond, Median: 2 * time.Millisecond, Most: 30 * time.Millisecond}
	r.Distinct[1].Quality = &paths.Quality{Sent: 20, Lost: 20}
	r.Session = &Session{Port: 40000, Probe: Line{Ports: paths.Ports{Source: 61002, Destination: 443}, Vertices: r.Distinct[0].Vertices}}
	var b bytes.Buffer
	if err := Text(&b, r); err != nil || !strings.Contains(b.String(), measuredText) {
		t.Errorf("%v: got\n%s\nwant\n%s", err, b.String(), measuredText)
	}
	p := JSON(r)
	if m := p.Distinct[0].Measured; m == nil || m.Lost != 1 || m.MostMS != 30 || p.Session.SessionPort != 40000 || p.Session.SourcePort != 61002 {
		t.Errorf("%+v", p)
	}
}

func TestJSON(t *testing.T) {
	p := JSON(report())
	if p.Schema != Schema || p.Count != 2 || len(p.Hops) != 3 || p.Hops[1].Vertices[1].Address != "" || p.Distinct[1].SourcePort != 61001 {
		t.Errorf("%+v", p)
	}
}

func TestSVG(t *testing.T) {
	r := report()
	r.Name = "<server>"
	var b bytes.Buffer
	if err := SVG(&b, r); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"&lt;server&gt;", "10.0.2.2", "no answer"} {
		if !strings.Contains(b.String(), want) {
			t.Errorf("%q is missing", want)
		}
	}
	d := xml.NewDecoder(&b)
	for {
		if _, err := d.Token(); errors.Is(err, io.EOF) {
			break
		} else if err != nil {
			t.Fatal(err)
		}
	}
}

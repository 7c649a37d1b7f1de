package names

import (
	"context"
	"net"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"golang.org/x/net/dns/dnsmessage"

	"github.com/detour-collective/dcol/internal/kernel/netstate/netnstest"
)

// record is one of an answer: to is an address, or the name that owner is an alias of.
type record struct {
	owner, to string
	ttl       uint32
}

func answer(t testing.TB, change func(*dnsmessage.Message), records ...record) []byte {
	t.Helper()
	name := func(s string) dnsmessage.Name { return dnsmessage.MustNewName(s + ".") }
	m := dnsmessage.Message{
		Header:    dnsmessage.Header{ID: 7, Response: true},
		Questions: []dnsmessage.Question{{Name: name("www.example.org"), Type: dnsmessage.TypeA, Class: dnsmessage.ClassINET}},
	}
	for _, r := range records {
		out := dnsmessage.Resource{Header: dnsmessage.ResourceHeader{Name: name(r.owner), Class: dnsmessage.ClassINET, TTL: r.ttl}}
		switch a, err := netip.ParseAddr(r.to); {
		case err != nil:
			out.Body = &dnsmessage.CNAMEResource{CNAME: name(r.to)}
		case a.Is4():
			out.Body = &dnsmessage.AResource{A: a.As4()}
		default:
			out.Body = &dnsmessage.AAAAResource{AAAA: a.As16()}
		}
		m.Answers = append(m.Answers, out)
	}
	if change != nil {
		change(&m)
	}
	b, err := m.Pack()
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func isExample(name string) bool {
	return name == "example.org" || strings.HasSuffix(name, ".example.org")
}

func TestAddresses(t *testing.T) {
	addr := func(s string, lasts time.Duration) Address {
		return Address{netip.MustParseAddr(s), "www.example.org", lasts}
	}
	plain := record{"www.example.org", "192.0.2.1", 300}
	for name, c := range map[string]struct {
		message []byte
		want    []Address
	}{
		"both families":             {answer(t, nil, plain, record{"www.example.org", "2001:db8::1", 600}), []Address{addr("192.0.2.1", 5*time.Minute), addr("2001:db8::1", 10*time.Minute)}},
		"in capitals":               {answer(t, nil, record{"WWW.Example.ORG", "192.0.2.1", 300}), []Address{addr("192.0.2.1", 5*time.Minute)}},
		"another name":              {answer(t, nil, record{"www.example.com", "192.0.2.1", 300}), nil},
		"short and long times":      {answer(t, nil, record{"a.example.org", "192.0.2.1", 0}, record{"b.example.org", "192.0.2.2", 1 << 30}), []Address{{netip.MustParseAddr("192.0.2.1"), "a.example.org", time.Minute}, {netip.MustParseAddr("192.0.2.2"), "b.example.org", 24 * time.Hour}}},
		"aliases":                   {answer(t, nil, record{"www.example.org", "a.example.net", 300}, record{"a.example.net", "b.example.net", 300}, record{"b.example.net", "192.0.2.1", 300}), []Address{addr("192.0.2.1", 5*time.Minute)}},
		"aliases in another order":  {answer(t, nil, record{"b.example.net", "192.0.2.1", 300}, record{"a.example.net", "b.example.net", 300}, record{"www.example.org", "a.example.net", 300}), []Address{addr("192.0.2.1", 5*time.Minute)}},
		"an alias of the name":      {answer(t, nil, record{"www.example.com", "www.example.org", 300}, plain), []Address{addr("192.0.2.1", 5*time.Minute)}},
		"an alias of an alias only": {answer(t, nil, record{"www.example.com", "a.example.net", 300}, record{"a.example.net", "192.0.2.1", 300}), nil},
		"aliases in a circle":       {answer(t, nil, record{"www.example.org", "a.example.org", 300}, record{"a.example.org", "www.example.org", 300}), nil},
		"a question":                {answer(t, func(m *dnsmessage.Message) { m.Response = false }, plain), nil},
		"an error":                  {answer(t, func(m *dnsmessage.Message) { m.RCode = dnsmessage.RCodeNameError }, plain), nil},
		"of another class":          {answer(t, func(m *dnsmessage.Message) { m.Answers[0].Header.Class = dnsmessage.ClassCHAOS }, plain), nil},
		"after another type": {answer(t, func(m *dnsmessage.Message) {
			m.Answers = append([]dnsmessage.Resource{{Header: m.Answers[0].Header, Body: &dnsmessage.TXTResource{TXT: []string{"x"}}}}, m.Answers...)
		}, plain), []Address{addr("192.0.2.1", 5*time.Minute)}},
		"cut off in the second": {answer(t, nil, plain, record{"www.example.org", "192.0.2.2", 300})[:60], []Address{addr("192.0.2.1", 5*time.Minute)}},
		"nothing":               {nil, nil},
	} {
		if diff := cmp.Diff(c.want, Addresses(c.message, isExample), cmpopts.EquateComparable(netip.Addr{})); diff != "" {
			t.Errorf("%s: -want +got\n%s", name, diff)
		}
	}
	many := make([]record, 2*mostRecords)
	for i := range many {
		many[i] = plain
	}
	if n := len(Addresses(answer(t, nil, many...), isExample)); n != mostRecords {
		t.Errorf("%d addresses of %d records", n, len(many))
	}
}

// Whatever arrives, addresses are valid and few, and last for a bounded time.
func FuzzAddresses(f *testing.F) {
	f.Add(answer(f, nil, record{"www.example.org", "a.example.net", 300}, record{"a.example.net", "192.0.2.1", 300}))
	f.Add(answer(f, nil, record{"www.example.org", "2001:db8::1", 1 << 31}))
	f.Add([]byte{})
	f.Fuzz(func(t *testing.T, b []byte) {
		payload(b)
		list := Addresses(b, func(string) bool { return true })
		if len(list) > mostRecords {
			t.Errorf("%d addresses", len(list))
		}
		for _, a := range list {
			if !a.Addr.IsValid() || a.For < leastTime || a.For > mostTime {
				t.Errorf("%+v", a)
			}
		}
	})
}

// Answers of a resolver are seen as they arrive, over IPv4 and IPv6, and other packets are not.
func TestWatch(t *testing.T) {
	ns := netnstest.New(t)
	var w *Watcher
	ns.Must(t, func() (err error) { w, err = Open(); return err })
	found := make(chan []Address, 10)
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- w.Run(ctx, isExample, func(list []Address) { found <- list }) }()

	send := func(from, to, addr string) {
		t.Helper()
		ns.Must(t, func() error {
			d := net.Dialer{LocalAddr: net.UDPAddrFromAddrPort(netip.MustParseAddrPort(from))}
			c, err := d.DialContext(t.Context(), "udp", to)
			if err != nil {
				return err
			}
			defer c.Close()
			_, err = c.Write(answer(t, nil, record{"www.example.org", addr, 300}))
			return err
		})
	}
	send("127.0.0.1:5353", "127.0.0.1:9", "192.0.2.66") // not from DNS's port
	send("127.0.0.1:53", "127.0.0.1:9", "192.0.2.1")
	send("[::1]:53", "[::1]:9", "192.0.2.2")
	for _, want := range []string{"192.0.2.1", "192.0.2.2"} {
		select {
		case list := <-found:
			if len(list) != 1 || list[0].Addr != netip.MustParseAddr(want) {
				t.Errorf("%v, want %s", list, want)
			}
		case <-time.After(5 * time.Second):
			t.Errorf("the answer with %s was not seen", want)
		}
	}
	cancel()
	if err := <-ended; err != nil {
		t.Error(err)
	}
	if len(found) != 0 {
		t.Errorf("an answer was seen twice: %v", <-found)
	}
}

package e2e

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	crand "crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"math/big"
	"math/rand/v2"
	"net"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/quic-go/quic-go"

	"github.com/detour-collective/dcol/internal/packet"
)

// Random datagrams, more than a waypoint gets in a day, disturb neither its
// sessions nor what runs through it.
func TestRandomDatagrams(t *testing.T) {
	w := standard(newWorld(t))
	w.startBoth()
	x := w.curl(w.url())
	before, session := w.detoured(), w.waypoint()

	many, watched := 40_000/slowness(), 8_000/slowness()
	conn := w.socket(mallory)
	noise := rand.New(rand.NewPCG(1, 2))
	to := netip.AddrPortFrom(w.addr4(bob), 45672)
	for i := range many {
		if _, err := conn.WriteToUDPAddrPort(datagram(noise), to); err != nil {
			t.Fatal(err)
		}
		if i%watched == 0 {
			x.goesOn()
			w.dcol(alice, "map", port(w.addr4(server), 81), "--via", bob)
		}
	}
	// The waypoint does not amplify traffic towards others.
	sent, received := w.counters(mallory)
	if received > sent {
		t.Errorf("the waypoint answered %d bytes of noise by %d", sent, received)
	}
	if now := w.waypoint(); now.State != "up" || now.Since != session.Since {
		t.Errorf("the session did not live on: %+v, before %+v", now, session)
	}
	w.unchanged(before)
	w.mustStatus(bob)
	x.goesOn()
	x.endsWell()
}

// datagram returns noise, some of which resembles QUIC (RFC 9000, 17).
func datagram(r *rand.Rand) []byte {
	d := make([]byte, 1+r.IntN(1400))
	for i := range d {
		d[i] = byte(r.Uint32())
	}
	switch r.IntN(4) {
	case 0: // a long header of version 1
		d[0] |= 0xc0
		d = append(d[:1:1], append([]byte{0, 0, 0, 1}, d[1:]...)...)
	case 1: // a short header
		d[0] = d[0]&0x3f | 0x40
	}
	return d
}

func (w *world) socket(host string) (conn *net.UDPConn) {
	w.Helper()
	err := w.host(host).Do(func() (err error) {
		conn, err = net.ListenUDP("udp4", nil)
		return err
	})
	if err != nil {
		w.Fatal(err)
	}
	w.Cleanup(func() { conn.Close() })
	return conn
}

// counters returns the bytes that a host sent and received on its link.
func (w *world) counters(host string) (sent, received uint64) {
	w.Helper()
	toRouter, fromRouter, err := w.net.LinkStats(host)
	if err != nil {
		w.Fatal(err)
	}
	return toRouter.Bytes, fromRouter.Bytes
}

// Only the member that a mapping was granted to can use it.
func TestStrangerAtMappedPort(t *testing.T) {
	w := standard(newWorld(t))
	w.startBoth()
	x := w.curl(w.url())
	before := w.detoured()
	at := detour(before).Remote
	x.goesOn()
	w.run(server, "nft", fmt.Sprintf("table inet watch {\nchain input {\ntype filter hook input priority 0\n"+
		"ip saddr %v tcp flags & (syn|ack) == syn counter\nip saddr != { %v, %v } counter\n}\n}", w.addr4(bob), w.addr4(bob), w.addr4(alice)))

	if r := w.try(mallory, "curl", "--silent", "--show-error", "--max-time", "5", "http://"+at.String()+"/file", "--output", "/dev/null"); r.code != 7 {
		t.Errorf("a stranger's connection to a mapped port is not refused:\n%v", r)
	}
	const many = 30_000
	flood := w.synFlooder(mallory, at)
	for i := range many {
		flood(i)
		if i%10_000 == 0 {
			x.goesOn()
		}
	}
	// Nor is the waypoint a router for strangers, though it forwards for members.
	w.run(router, "ip", "rule", "add", "from", w.addr4(mallory).String(), "lookup", "7")
	w.run(router, "ip", "route", "add", w.addr4(server).String(), "via", w.addr4(bob).String(), "dev", w.host(router).Interface(bob), "table", "7")
	if r := w.try(mallory, "curl", "--silent", "--connect-timeout", "2", w.url(), "--output", "/dev/null"); r.code != 28 {
		t.Errorf("a stranger's packets by way of the waypoint are not dropped:\n%v", r)
	}
	if !w.refused(`iifname @guarded4 .* counter packets (\d+)`) {
		t.Error("the waypoint dropped nothing of IPv4")
	}
	watched := w.run(server, "nft", "list", "table", "inet", "watch")
	if strings.Count(watched, "counter packets 0 bytes 0") != 2 {
		t.Errorf("a stranger's packets were forwarded:\n%s", watched)
	}
	if flows := w.ourFlows(); len(flows) != 1 {
		t.Errorf("%d connections are forwarded, want alice's one: %q", len(flows), flows)
	}
	w.unchanged(before)
	w.cut()
	x.goesOn() // through the flooded waypoint
	w.mend()
	x.endsWell()
}

// synFlooder returns a function that sends one SYN to a port, each from another port and address, none of
// them alice's.
func (w *world) synFlooder(host string, to netip.AddrPort) func(i int) {
	w.Helper()
	send := w.sender(host)
	own := w.addr4(host)
	return func(i int) {
		from := own
		if i%2 == 1 {
			from = netip.AddrFrom4([4]byte{10, 77, byte(i >> 8), byte(i)})
		}
		send(segment{from: netip.AddrPortFrom(from, uint16(1024+i%60000)), to: to, seq: rand.Uint32(), flags: packet.SYN})
	}
}

// Another program answers at the waypoint's address.
func TestNonsenseAtWaypoint(t *testing.T) {
	w := standard(newWorld(t))
	for _, c := range []struct {
		name  string
		serve func() (end func())
		words []string
	}{
		{"random bytes", w.echoNoise, []string{"10.0.2.1:45672", "check that a dcol waypoint listens"}},
		{"QUIC of another kind", w.serveQUIC, []string{"10.0.2.1:45672"}},
	} {
		end := c.serve()
		ofAlice := w.start(alice)
		x := w.curl(w.url())
		w.eventually(c.name+" is reported", func() error {
			s := w.waypoint()
			for _, word := range c.words {
				if s.State != "down" || !strings.Contains(s.Why, word) || strings.Contains(s.Why, "did not answer") {
					return fmt.Errorf("it is %s: %s", s.State, s.Why)
				}
			}
			t.Logf("%s: %s", c.name, s.Why)
			return nil
		})
		w.fails(alice, []string{"map", port(w.addr4(server), 80), "--via", bob}, append(c.words, "no session with bob")...)
		x.endsWell()
		ofAlice.stop()
		end()
	}
}

// echoNoise answers every datagram to bob's session port by random bytes.
func (w *world) echoNoise() (end func()) {
	conn := w.occupy(bob, 45672)
	done := make(chan struct{})
	go func() {
		defer close(done)
		r := rand.New(rand.NewPCG(3, 4))
		buffer := make([]byte, 2048)
		for {
			_, from, err := conn.ReadFromUDPAddrPort(buffer)
			if err != nil {
				return
			}
			if _, err := conn.WriteToUDPAddrPort(datagram(r), from); err != nil {
				return
			}
		}
	}()
	return func() { conn.Close(); <-done }
}

// serveQUIC runs a foreign HTTP/3 server at bob's session port.
func (w *world) serveQUIC() (end func()) {
	conn := w.occupy(bob, 45672)
	transport := &quic.Transport{Conn: conn}
	listener, err := transport.Listen(&tls.Config{Certificates: []tls.Certificate{selfSigned(w.T)}, NextProtos: []string{"h3"}}, nil)
	if err != nil {
		w.Fatal(err)
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		for {
			if _, err := listener.Accept(context.Background()); err != nil {
				return
			}
		}
	}()
	return func() { listener.Close(); transport.Close(); conn.Close(); <-done }
}

func selfSigned(t *testing.T) tls.Certificate {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), crand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{SerialNumber: big.NewInt(1), DNSNames: []string{bob, server}, NotAfter: time.Now().Add(time.Hour)}
	der, err := x509.CreateCertificate(crand.Reader, template, template, &key.PublicKey, key)
	if err != nil {
		t.Fatal(err)
	}
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}
}

// occupy has another program listen on a UDP port of a host.
func (w *world) occupy(host string, port int) (conn *net.UDPConn) {
	w.Helper()
	// A program that another test is about to start holds, until it is executed, what is
	// closed here.
	w.eventually(fmt.Sprintf("UDP port %d is free", port), func() error {
		return w.host(host).Do(func() (err error) {
			conn, err = net.ListenUDP("udp", &net.UDPAddr{Port: port})
			return err
		})
	})
	w.Cleanup(func() { conn.Close() })
	return conn
}

func port(addr netip.Addr, n int) string { return net.JoinHostPort(addr.String(), fmt.Sprint(n)) }

package bus

import (
	"net"
	"testing"
	"time"
)

// relay forwards connections to a server until it is told to be silent. Then they stay open, like those of a host that
// has disappeared.
func relay(t *testing.T, to string) (address string, silent chan struct{}) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	silent = make(chan struct{})
	pass := func(to, from net.Conn) {
		buffer := make([]byte, 4096)
		for {
			n, err := from.Read(buffer)
			select {
			case <-silent: // what arrives is lost, and nobody learns that an end was closed
				if err == nil {
					continue
				}
				return
			default:
			}
			if _, writeErr := to.Write(buffer[:n]); err != nil || writeErr != nil {
				return
			}
		}
	}
	go func() {
		for {
			near, err := l.Accept()
			if err != nil {
				return
			}
			select {
			case <-silent:
				t.Cleanup(func() { near.Close() })
				continue
			default:
			}
			far, err := net.Dial("tcp", to)
			if err != nil {
				near.Close()
				return
			}
			t.Cleanup(func() { near.Close(); far.Close() })
			go pass(near, far)
			go pass(far, near)
		}
	}()
	return l.Addr().String(), silent
}

// If a server disappears, the member notices its silence first, and the connection counts as lost within 25 s.
func TestServerVanishes(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	s := w.serve(t.TempDir(), "127.0.0.1:0")
	address, silent := relay(t, s.Endpoint().Address)
	alice := w.member(w.identity("alice"), nothing, Endpoint{Name: "hub", Address: address})
	eventually(t, "alice is in", 10*time.Second, func() bool { return alice.State().Connected })
	if heard := alice.State().Heard; time.Since(heard) > 10*time.Second {
		t.Errorf("last heard %v ago", time.Since(heard))
	}
	close(silent)
	time.Sleep(time.Second)
	at := alice.State().Heard
	time.Sleep(time.Second)
	if s := alice.State(); s.Connected && !s.Heard.Equal(at) {
		t.Error("silence counts as something heard")
	}
	took := eventually(t, "alice notices", 25*time.Second, func() bool { return !alice.State().Connected })
	t.Logf("noticed after %v: %v", took+2*time.Second, alice.State().Err)
}

package names

import (
	"bytes"
	"crypto/tls"
	"strings"
	"testing"
)

// hello returns the ClientHello of a TLS client.
func hello(t testing.TB, name string, change func(*tls.Config)) []byte {
	t.Helper()
	c := &tls.Config{ServerName: name, InsecureSkipVerify: true}
	if change != nil {
		change(c)
	}
	said := &listening{}
	_ = tls.Client(said, c).Handshake() // nobody answers
	return said.heard.Bytes()
}

// listening is a connection whose other side sends nothing.
type listening struct {
	recording
	heard bytes.Buffer
}

func (l *listening) Read([]byte) (int, error)    { return 0, errSeen }
func (l *listening) Write(b []byte) (int, error) { return l.heard.Write(b) }

func TestServerName(t *testing.T) {
	const name = "www.example.org"
	whole := hello(t, name, nil)
	// The same message in two records.
	at := recordHeader + 40
	two := bytes.Join([][]byte{{22, 3, 1, 0, 40}, whole[recordHeader:at], {22, 3, 1, byte((len(whole) - at) >> 8), byte(len(whole) - at)}, whole[at:]}, nil)
	damaged := bytes.Clone(whole)
	damaged[recordHeader+4+2+32] = 255 // behind the message's header, a version and a random number
	for _, c := range []struct {
		what string
		b    []byte
		want string
		more bool
	}{
		{"TLS 1.3", whole, name, false},
		{"TLS 1.2", hello(t, name, func(c *tls.Config) { c.MaxVersion = tls.VersionTLS12 }), name, false},
		{"with data behind it", append(bytes.Clone(whole), "data"...), name, false},
		{"in two records", two, name, false},
		{"the first of two records", two[:at], "", true},
		{"without a name", hello(t, "192.0.2.1", nil), "", false},
		{"nothing", nil, "", true},
		{"one byte", whole[:1], "", true},
		{"all but one byte", whole[:len(whole)-1], "", true},
		{"HTTP", []byte("GET / HTTP/1.1\r\n"), "", false},
		{"SSH", []byte("SSH-2.0-OpenSSH"), "", false},
		{"another record", append([]byte{23}, whole[1:]...), "", false},
		{"another version", append([]byte{22, 2}, whole[2:]...), "", false},
		{"another message", append([]byte{22, 3, 1, 0, 4, 2, 0, 0, 0}, whole...), "", false},
		{"a message that is too long", append([]byte{22, 3, 1, 0, 4, 1, 255, 255, 255}, make([]byte, mostHello)...), "", false},
		{"a record that is too long", append([]byte{22, 3, 1, 255, 255}, make([]byte, mostHello)...), "", false},
		{"a session that is too long", damaged, "", false},
		{"a dot at the end", bytes.Replace(whole, []byte(name), []byte(strings.Repeat("a", len(name)-1)+"."), 1), "", false},
	} {
		if got, more := ServerName(c.b); got != c.want || more != c.more {
			t.Errorf("%s: %q, more: %t; want %q, %t", c.what, got, more, c.want, c.more)
		}
	}
}

// FuzzServerName checks that ServerName takes any bytes in any pieces, and wants more only up to mostHello bytes.
func FuzzServerName(f *testing.F) {
	f.Add(hello(f, "www.example.org", nil))
	f.Add([]byte{22, 3, 1, 0, 4, 2, 0, 0, 0})
	f.Add([]byte("GET / HTTP/1.1\r\n"))
	f.Fuzz(func(t *testing.T, b []byte) {
		name, more := ServerName(b)
		if more && (name != "" || len(b) >= mostHello) {
			t.Errorf("%q and more after %d bytes", name, len(b))
		}
		if len(name) > len(b) {
			t.Errorf("a name of %d bytes in %d", len(name), len(b))
		}
		if _, more := ServerName(b[:len(b)/2]); name != "" && len(b) < mostHello && !more {
			if half, _ := ServerName(b[:len(b)/2]); half != name {
				t.Error("half of it has no name, and wants no more")
			}
		}
	})
}

package e2e

import (
	"bufio"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"fmt"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"syscall"
	"testing"

	"github.com/detour-collective/dcol/lab/testbed"
)

// A TLS server takes its time with its first words. Until then the detour waits
// as backup and carries nothing; then it is promoted.
func TestDetourWaitsForTLS(t *testing.T) {
	w := standard(newWorld(t))
	w.startBoth()
	speak := w.slowTLS(8443)
	c := w.capture()
	x := w.curl("--insecure", "https://"+port(w.addr4(server), 8443)+"/file")
	w.subflows("direct up", "mapped backup")
	if x.got.Load() != 0 {
		t.Fatal("the server has spoken already")
	}
	speak()
	x.goesOn()
	w.detoured()
	w.cut()
	x.goesOn()
	w.mend()
	c.handshakeStaysDirect(8443)
	x.endsWell()
}

// The same with nginx, whose first words come as soon as they can.
func TestTLSWithNginx(t *testing.T) {
	w := newWorld(t)
	standard(w, w.nginxTLS())
	w.startBoth()
	c := w.capture()
	x := w.curl("--insecure", "https://"+w.addr4(server).String()+"/file")
	w.detoured()
	x.goesOn()
	w.cut()
	x.goesOn()
	w.mend()
	c.handshakeStaysDirect(443)
	x.endsWell()
}

// nginxTLS returns a server block for port 443.
func (w *world) nginxTLS() string {
	w.Helper()
	cert := selfSigned(w.T)
	key, err := x509.MarshalPKCS8PrivateKey(cert.PrivateKey)
	if err != nil {
		w.Fatal(err)
	}
	crtFile, keyFile := filepath.Join(w.dir, "web.crt"), filepath.Join(w.dir, "web.key")
	for name, block := range map[string]*pem.Block{
		crtFile: {Type: "CERTIFICATE", Bytes: cert.Certificate[0]},
		keyFile: {Type: "PRIVATE KEY", Bytes: key},
	} {
		if err := os.WriteFile(name, pem.EncodeToMemory(block), 0o600); err != nil {
			w.Fatal(err)
		}
	}
	return fmt.Sprintf("server { listen 443 ssl; ssl_certificate %s; ssl_certificate_key %s; }\n", crtFile, keyFile)
}

// slowTLS serves the file over TLS on the server, and sends nothing until speak is called.
func (w *world) slowTLS(port int) (speak func()) {
	w.Helper()
	var listener net.Listener
	err := w.host(server).Do(func() (err error) { // Go listens with MPTCP
		listener, err = net.ListenTCP("tcp", &net.TCPAddr{Port: port})
		return err
	})
	if err != nil {
		w.Fatal(err)
	}
	quiet := make(chan struct{})
	config := &tls.Config{
		Certificates: []tls.Certificate{selfSigned(w.T)},
		GetConfigForClient: func(*tls.ClientHelloInfo) (*tls.Config, error) {
			<-quiet
			return nil, nil
		},
	}
	srv := &http.Server{Handler: http.FileServer(http.Dir(webRoot)), TLSConfig: config}
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = srv.ServeTLS(listener, "", "") // it ends by Close
	}()
	speak = sync.OnceFunc(func() { close(quiet) })
	w.Cleanup(func() {
		speak()
		srv.Close()
		<-done
	})
	return speak
}

// capture is a tcpdump on the router, which sees both paths.
type capture struct {
	w    *world
	cmd  *testbed.Cmd
	file string
	done chan struct{}
}

func (w *world) capture() *capture {
	w.Helper()
	c := &capture{w: w, file: filepath.Join(w.dir, "capture.pcap"), done: make(chan struct{})}
	c.cmd = w.host(router).Command(w.life(), "tcpdump", "-i", "any", "-n", "-s", "128", "-Z", "root", "-U", "-w", c.file, "tcp")
	diagnostics, to, err := os.Pipe()
	if err != nil {
		w.Fatal(err)
	}
	c.cmd.Stderr = to
	err = c.cmd.Start()
	to.Close()
	if err != nil {
		w.Fatal(err)
	}
	ready := make(chan string)
	go func() {
		defer close(c.done)
		defer diagnostics.Close()
		lines := bufio.NewScanner(diagnostics)
		said := false
		for lines.Scan() {
			if !said && strings.Contains(lines.Text(), "listening on") {
				said = true
				close(ready)
			}
		}
		if !said {
			ready <- "tcpdump ended"
		}
		_ = c.cmd.Wait()
	}()
	if problem := <-ready; problem != "" {
		w.Fatal(problem)
	}
	return c
}

// payload is a line of tcpdump about a TCP packet.
var payload = regexp.MustCompile(` IP ([0-9.]+)\.(\d+) > ([0-9.]+)\.(\d+): .* length (\d+)`)

// handshakeStaysDirect ends the capture and demands that the detour carried
// something, but nothing before the server's first data on the direct path.
func (c *capture) handshakeStaysDirect(serverPort int) {
	c.w.Helper()
	// tcpdump is slower than what it looks at.
	c.w.eventually("the capture shows both paths", func() error {
		direct, viaBob, text := c.paths(serverPort)
		return holds(direct > 0 && viaBob > 0, "it has %d packets with data from the server on the direct path and %d on the detour:\n%s",
			direct, viaBob, text[:min(len(text), 4000)])
	})
	if err := c.cmd.Process.Signal(syscall.SIGTERM); err != nil {
		c.w.Fatal(err)
	}
	<-c.done
}

// paths counts packets with data from the server, of what was captured so far. None by way
// of bob may come before the first one on the direct path.
func (c *capture) paths(serverPort int) (direct, viaBob int, text string) {
	c.w.Helper()
	text = c.w.try(router, "tcpdump", "-n", "-r", c.file, "tcp").stdout // the last packet may be half written
	for line := range strings.Lines(text) {
		m := payload.FindStringSubmatch(line)
		if m == nil || m[5] == "0" {
			continue
		}
		from, to := m[1], m[3]
		switch {
		case from == c.w.addr4(bob).String() || to == c.w.addr4(bob).String():
			if viaBob++; direct == 0 {
				c.w.Fatalf("the detour carried this before the server was heard on the direct path:\n%s", line)
			}
		case from == c.w.addr4(server).String() && m[2] == fmt.Sprint(serverPort):
			direct++
		}
	}
	return direct, viaBob, text
}

package mptcpify

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"strconv"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

func TestGoProgram(t *testing.T) {
	needMPTCP(t)
	newNamespace(t)
	probe := goProbe(t)
	want := fmt.Sprintf("listener %[1]d <nil>\nclient %[1]d <nil>\nserver %[1]d <nil>\n", unix.IPPROTO_MPTCP)
	wantProbe(t, run(t, probe), want)
}

func TestPython(t *testing.T) {
	needMPTCP(t)
	needProgram(t, "python3")
	wantProbe(t, run(t, "python3", "-c", "import socket; print(socket.socket().getsockopt(socket.SOL_SOCKET, 38))"), "262\n")
}

// TestCurl asks the server what the connection of an everyday program is.
func TestCurl(t *testing.T) {
	needMPTCP(t)
	needProgram(t, "curl")
	for _, network := range []string{"tcp4", "tcp6"} {
		t.Run(network, func(t *testing.T) {
			newNamespace(t)
			url := mptcpServer(t, network)
			for _, c := range []struct{ how, want string }{{"plain", "false"}, {"dcol run", "true"}} {
				cmd := run(t, "curl", "-sS", url)
				if c.how == "plain" {
					cmd = exec.Command("curl", "-sS", url)
				}
				if got := end(t, cmd); got.stdout != c.want || got.code != 0 {
					t.Errorf("%s: the server says MPTCP %q, want %q (%+v)", c.how, got.stdout, c.want, got)
				}
			}
		})
	}
}

// mptcpServer answers each request with whether it came over MPTCP.
func mptcpServer(t *testing.T, network string) (url string) {
	t.Helper()
	var config net.ListenConfig
	config.SetMultipathTCP(true)
	host := map[string]string{"tcp4": "127.0.0.1", "tcp6": "::1"}[network]
	listener, err := config.Listen(context.Background(), network, net.JoinHostPort(host, "0"))
	if err != nil {
		t.Fatal(err)
	}
	type connKey struct{}
	server := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		conn := r.Context().Value(connKey{}).(*net.TCPConn)
		multipath, err := conn.MultipathTCP()
		if err != nil {
			http.Error(w, err.Error(), http.StatusInternalServerError)
			return
		}
		fmt.Fprint(w, multipath)
	}))
	server.Listener.Close()
	server.Listener = listener
	server.Config.ConnContext = func(ctx context.Context, c net.Conn) context.Context {
		return context.WithValue(ctx, connKey{}, c)
	}
	server.Start()
	t.Cleanup(server.Close)
	return server.URL
}

// TestServer checks that an everyday server accepts MPTCP connections.
func TestServer(t *testing.T) {
	needMPTCP(t)
	needProgram(t, "iperf3")
	newNamespace(t)
	const port = 5201
	cmd := run(t, "iperf3", "-s", "-p", strconv.Itoa(port))
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Signal(os.Interrupt)
		_ = cmd.Wait()
	})
	dialer := net.Dialer{Timeout: time.Second}
	dialer.SetMultipathTCP(true)
	// After any error over MPTCP Go tries plain TCP, which may be the first to meet the
	// listener; a server whose socket is plain never gives another.
	eventually(t, "iperf3 takes MPTCP connections", func() bool {
		conn, err := dialer.Dial("tcp", fmt.Sprintf("127.0.0.1:%d", port))
		if err != nil {
			return false
		}
		defer conn.Close()
		multipath, err := conn.(*net.TCPConn).MultipathTCP()
		return err == nil && multipath
	})
}

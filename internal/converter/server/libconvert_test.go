package server

import (
	"bytes"
	"crypto/sha256"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/http"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/detour-collective/dcol/internal/converter/cookie"
	"github.com/detour-collective/dcol/internal/converter/engine/enginetest"
)

// libraryVariable names Tessares' libconvert_client.so. scripts/libconvert.sh builds it and runs the test.
const libraryVariable = "LIBCONVERT"

const inNamespace = "DCOL_TEST_IN_NAMESPACE"

// curl, turned into a Convert client by another implementation of the protocol, is served. The message comes in the
// SYN if the listener takes data there (TFO), else after the handshake.
func TestLibconvert(t *testing.T) {
	library := os.Getenv(libraryVariable)
	switch {
	case library == "":
		t.Skipf("needs Tessares' libconvert in $%s: run scripts/libconvert.sh", libraryVariable)
	case os.Geteuid() != 0:
		t.Skip("needs root: makes a network namespace")
	case os.Getenv(inNamespace) == "":
		again(t)
		return
	}
	// Client and server with TFO (1, 2), both without its cookies (4, 512), which libconvert relies on.
	if err := os.WriteFile("/proc/sys/net/ipv4/tcp_fastopen", []byte("519"), 0); err != nil {
		t.Fatal(err)
	}
	lo, err := netlink.LinkByName("lo")
	if err := errors.Join(err, netlink.LinkSetUp(lo)); err != nil {
		t.Fatal(err)
	}
	for addr := range published {
		ip := &netlink.Addr{IPNet: netlink.NewIPNet(addr.AsSlice()), Flags: unix.IFA_F_NODAD}
		if err := netlink.AddrAdd(lo, ip); err != nil {
			t.Fatal(err)
		}
	}
	body := make([]byte, 5<<20)
	_, _ = rand.NewChaCha8([32]byte{1}).Read(body)
	sum := sha256.Sum256(body)
	for _, fastOpen := range []bool{false, true} {
		l := enginetest.Listen(t, "127.0.0.1", true)
		if fastOpen {
			enginetest.TakeDataInSYN(t, l)
		}
		e, at := enginetest.StartAt(t, New(key), l)
		curl := func(c []byte, url string) ([]byte, error) {
			cmd := exec.CommandContext(t.Context(), "curl", "-sS", "--noproxy", "*", "-m", "20", url)
			cmd.Env = append(os.Environ(), "LD_PRELOAD="+library, "CONVERT_ADDR=127.0.0.1",
				fmt.Sprintf("CONVERT_PORT=%d", at.Port()), "CONVERT_COOKIE="+string(c))
			var stderr bytes.Buffer
			cmd.Stderr = &stderr
			out, err := cmd.Output()
			if err != nil {
				err = fmt.Errorf("%w: %s", err, stderr.String())
			}
			return out, err
		}
		for addr := range published {
			web := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write(body) })}
			wl := enginetest.Listen(t, addr.String(), false)
			served := make(chan error, 1)
			go func() { served <- web.Serve(wl) }()
			t.Cleanup(func() { web.Close(); <-served })
			url := "http://" + wl.Addr().String()
			if out, err := curl(textCookie(), url); err != nil || sha256.Sum256(out) != sum {
				t.Errorf("TFO %v, %s: %d bytes, %v", fastOpen, addr, len(out), err)
			}
			before := e.Counters()
			if out, err := curl([]byte("no cookie of ours"), url); err == nil || len(out) > 0 {
				t.Errorf("TFO %v, %s: with another cookie: %d bytes, %v", fastOpen, addr, len(out), err)
			}
			enginetest.Eventually(t, "it is refused", func() bool { return e.Counters().Refused == before.Refused+1 })
			nobody := "http://" + enginetest.Nobody(t, addr.String()).String()
			if _, err := curl(textCookie(), nobody); err == nil || !strings.Contains(err.Error(), "onnect") {
				t.Errorf("TFO %v, %s: nobody listens: %v", fastOpen, addr, err)
			}
		}
		enginetest.Eventually(t, "all pairs end", func() bool { return e.Counters().Pairs == 0 })
		if n := e.Counters(); n.Accepted != 6 || n.Refused != 4 {
			t.Errorf("TFO %v: %+v", fastOpen, n)
		}
		if n := dataInSYNs(t); (n == 6) != fastOpen || n != 0 && n != 6 {
			t.Errorf("TFO %v: %d SYNs brought data", fastOpen, n)
		}
	}
}

// again runs the test in a network namespace.
func again(t *testing.T) {
	t.Helper()
	cmd := exec.Command("/proc/self/exe", "-test.run=^"+t.Name()+"$", "-test.v")
	cmd.Env = append(os.Environ(), inNamespace+"=yes")
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWNET}
	out, err := cmd.CombinedOutput()
	if err != nil || !strings.Contains(string(out), "--- PASS: "+t.Name()) {
		t.Fatalf("in its namespace: %v\n%s", err, out)
	}
	t.Logf("%s", out)
}

// dataInSYNs returns how many SYNs brought data that was taken, in this namespace.
func dataInSYNs(t *testing.T) int {
	t.Helper()
	text, err := os.ReadFile("/proc/thread-self/net/netstat")
	if err != nil {
		t.Fatal(err)
	}
	lines := strings.Split(string(text), "\n")
	i := slices.Index(strings.Fields(lines[0]), "TCPFastOpenPassive")
	if i < 0 {
		t.Fatal("the kernel does not count TCPFastOpenPassive")
	}
	n, err := strconv.Atoi(strings.Fields(lines[1])[i])
	if err != nil {
		t.Fatal(err)
	}
	return n
}

// textCookie returns a cookie without zero bytes: libconvert reads it as a string.
func textCookie() []byte {
	for lasts := time.Hour; ; lasts += time.Second {
		c := key.Seal(cookie.Claim{Mark: 0x81010105, Client: client, Expires: time.Now().Add(lasts)})
		if !slices.Contains(c, 0) {
			return c
		}
	}
}

package bus

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"flag"
	"fmt"
	"math/big"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"

	"github.com/detour-collective/dcol/internal/collective"
)

// asNatsServer is an environment variable that makes the test's program run nats-server's main function. So nats-server
// has the version in go.mod, and no other program must be built.
const asNatsServer = "DCOL_TEST_NATS_SERVER"

func natsServer(configFile string) int {
	options, err := server.ConfigureOptions(flag.NewFlagSet("nats-server", flag.ContinueOnError), []string{"-c", configFile}, nil, nil, nil)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	s, err := server.NewServer(options)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	s.ConfigureLogger()
	if err := server.Run(s); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	s.WaitForShutdown()
	return 0
}

// cluster is three nats-server processes on a separate address.
type cluster struct {
	t         testing.TB
	dirs      []string
	processes []*exec.Cmd
	servers   []Endpoint
}

// serveCluster writes the configuration that an operator would, and starts the servers.
func (w *world) serveCluster() *cluster {
	w.t.Helper()
	c := &cluster{t: w.t}
	// Only this process uses the address, so the ports are free.
	pid := os.Getpid()
	address := net.IPv4(127, byte(64|pid>>16), byte(pid>>8), byte(pid))
	routes := newRouteCA(w.t, address)
	var urls []string
	for i := range 3 {
		urls = append(urls, fmt.Sprintf("nats-route://%s", net.JoinHostPort(address.String(), fmt.Sprint(6222+i))))
	}
	for i := range 3 {
		name := fmt.Sprintf("nats%d", i+1)
		dir := w.t.TempDir()
		files := w.files(collective.Request{Name: name})
		e := Endpoint{Name: name, Address: net.JoinHostPort(address.String(), fmt.Sprint(4222+i))}
		text, err := w.authority.ServerConfig(External{
			Name: name, Listen: e.Address, Dir: dir,
			Certificate: files.Certificate, Key: files.Key, CA: files.CA,
		})
		if err != nil {
			w.t.Fatal(err)
		}
		cert, key := routes.issue(name)
		own := fmt.Sprintf("cluster {\n name: dcol\n listen: %q\n routes: [%s]\n tls { cert_file: %q, key_file: %q, ca_file: %q, verify: true }\n}\n",
			strings.TrimPrefix(urls[i], "nats-route://"), strings.Join(urls, ", "), cert, key, routes.file)
		for file, text := range map[string]string{"server.conf": text, "cluster.conf": own} {
			if err := os.WriteFile(filepath.Join(dir, file), []byte(text), 0o600); err != nil {
				w.t.Fatal(err)
			}
		}
		c.dirs, c.servers, c.processes = append(c.dirs, dir), append(c.servers, e), append(c.processes, nil)
		c.start(i)
	}
	return c
}

func (c *cluster) start(i int) {
	c.t.Helper()
	self, err := os.Executable()
	if err != nil {
		c.t.Fatal(err)
	}
	cmd := exec.Command(self)
	cmd.Env = append(os.Environ(), asNatsServer+"="+filepath.Join(c.dirs[i], "server.conf"))
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	log, err := os.OpenFile(filepath.Join(c.dirs[i], "log"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		c.t.Fatal(err)
	}
	defer log.Close()
	cmd.Stdout, cmd.Stderr = log, log
	if err := cmd.Start(); err != nil {
		c.t.Fatal(err)
	}
	c.processes[i] = cmd
	c.t.Cleanup(func() {
		cmd.Process.Kill()
		cmd.Wait()
		if text, err := os.ReadFile(filepath.Join(c.dirs[i], "log")); err == nil && c.t.Failed() {
			lines := slices.DeleteFunc(strings.Split(string(text), "\n"), func(l string) bool { return strings.Contains(l, ofClient) })
			c.t.Logf("%s said at last:\n%s", c.servers[i].Name, strings.Join(lines[max(0, len(lines)-20):], "\n"))
		}
	})
}

// kill ends a server as a power cut would.
func (c *cluster) kill(i int) {
	c.t.Helper()
	if err := c.processes[i].Process.Kill(); err != nil {
		c.t.Error(err)
	}
	c.processes[i].Wait()
}

func (c *cluster) index(name string) int {
	for i, e := range c.servers {
		if e.Name == name {
			return i
		}
	}
	c.t.Fatalf("no server is named %q", name)
	return -1
}

// bucket opens a bucket on all three servers, once they have found each other.
func (c *cluster) bucket(co *Coordinator) *Bucket {
	c.t.Helper()
	var b *Bucket
	var err error
	begin := time.Now()
	for b == nil {
		ctx, cancel := context.WithTimeout(c.t.Context(), 3*time.Second)
		b, err = co.Bucket(ctx, "records", 3)
		cancel()
		if err != nil && time.Since(begin) > 60*time.Second {
			c.t.Fatal(err)
		}
	}
	return b
}

// TestClusterLosesOne kills the coordinator's server while records are written, and later another server. No accepted
// record may be missing, and members continue.
func TestClusterLosesOne(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	c := w.serveCluster()
	co := w.coordinator(echo(), c.servers...)
	b := c.bucket(co)

	const members = 9
	var heard [members]atomic.Int64
	var joined []*Member
	for i := range members {
		joined = append(joined, w.member(w.identity(fmt.Sprintf("member%d", i)), func(Message) { heard[i].Add(1) }, c.servers...))
	}
	eventually(t, "all are connected", 20*time.Second, func() bool { return allConnected(joined) })

	accepted := map[string]string{}
	var longest time.Duration
	write := func(n int) {
		for last := time.Now(); n > 0; {
			key := fmt.Sprintf("record%d", len(accepted))
			ctx, cancel := context.WithTimeout(t.Context(), time.Second)
			_, err := b.Put(ctx, key, []byte("value of "+key))
			cancel()
			if err == nil {
				accepted[key] = "value of " + key
				longest, last = max(longest, time.Since(last)), time.Now()
				n--
				co.TellAll("records", []byte(key))
			} else if time.Since(last) > 60*time.Second {
				t.Fatalf("nothing is accepted any more: %v", err)
			} else if errors.Is(err, ErrNotConnected) {
				time.Sleep(20 * time.Millisecond)
			}
		}
	}
	writeWhileKilling := func(i, n int) {
		longest = 0
		killed := make(chan struct{})
		go func() {
			defer close(killed)
			c.kill(i)
		}()
		for done := false; !done; {
			select {
			case <-killed:
				done = true
			default:
				write(1)
			}
		}
		write(n)
		t.Logf("without %s: at most %v between two accepted changes; %d members have had to move", c.servers[i].Name, longest, moved(joined))
	}
	check := func(when string) {
		t.Helper()
		for key, want := range accepted {
			// A request that was on its way to the killed server is lost, and is repeated.
			var e Entry
			eventually(t, when+": an answer about "+key, 30*time.Second, func() bool {
				ctx, cancel := context.WithTimeout(t.Context(), time.Second)
				defer cancel()
				var err error
				e, err = b.Get(ctx, key)
				return err == nil || errors.Is(err, ErrNotFound)
			})
			if string(e.Value) != want {
				t.Fatalf("%s: %s is %q", when, key, e.Value)
			}
		}
		eventually(t, when+": all are connected", 30*time.Second, func() bool { return allConnected(joined) })
		for i, m := range joined {
			eventually(t, fmt.Sprintf("%s: member%d is answered", when, i), 20*time.Second, func() bool {
				ctx, cancel := context.WithTimeout(t.Context(), 2*time.Second)
				defer cancel()
				_, err := m.Ask(ctx, "x", nil)
				return err == nil
			})
		}
		before := heard[0].Load()
		if err := co.TellAll("records", nil); err != nil {
			t.Fatal(err)
		}
		eventually(t, when+": members hear", 5*time.Second, func() bool { return heard[0].Load() > before })
	}

	write(100)
	first := c.index(co.State().Server)
	writeWhileKilling(first, 200)
	check("one server lost")
	if co.State().Connects == 1 {
		t.Error("the coordinator was not connected to the server that was killed")
	}

	c.start(first)
	// The server must have caught up before another one may be lost.
	eventually(t, "the server is back and current", 60*time.Second, func() bool { return c.replicas(co) == 3 })
	second := (first + 1) % 3
	writeWhileKilling(second, 100)
	check("another server lost")
	t.Logf("%d changes accepted, none lost", len(accepted))
}

func allConnected(members []*Member) bool {
	for _, m := range members {
		if !m.State().Connected {
			return false
		}
	}
	return true
}

func moved(members []*Member) (n int) {
	for _, m := range members {
		if m.State().Connects > 1 {
			n++
		}
	}
	return n
}

// replicas returns the number of servers that store the bucket and are up to date.
func (c *cluster) replicas(co *Coordinator) int {
	ctx, cancel := context.WithTimeout(c.t.Context(), 2*time.Second)
	defer cancel()
	stream, err := co.jetstream.Stream(ctx, "KV_records")
	if err != nil {
		return 0
	}
	info := stream.CachedInfo().Cluster
	if info == nil || info.Leader == "" {
		return 0
	}
	n := 1
	for _, r := range info.Replicas {
		if r.Current && !r.Offline {
			n++
		}
	}
	return n
}

// TestClusterConfines checks the external servers like the embedded one.
func TestClusterConfines(t *testing.T) {
	w := newWorld(t)
	c := w.serveCluster()
	co := w.coordinator(echo(), c.servers...)
	c.bucket(co)
	config := w.config(w.hub, c.servers...)
	config.JWT = func() (string, error) {
		return w.authority.SystemJWT(w.hub.Name(), w.hub.PublicKey(), w.hub.Self().NotAfter)
	}
	system, err := ConnectSystem(config, w.authority)
	if err != nil {
		t.Fatal(err)
	}
	defer system.Close()
	if err := system.SetAccount(within(t, 5*time.Second), "nonsense"); err == nil {
		t.Error("the servers took nonsense for an account")
	}

	tryAsStranger(t, w, c.servers[0])
	confined(t, w, co, c.servers[0], 3)
	outcast, old := expulsion(t, w, system.SetAccount, c.servers[1])

	// A revocation at one server applies at all, including one that was not running at the time.
	for _, e := range c.servers {
		if _, err := w.dialRaw(outcast, old, outcast.Sign, e); !errors.Is(err, nats.ErrAuthorization) {
			t.Errorf("the old JWT at %s: %v", e.Name, err)
		}
	}
	away := (c.index(system.State().Server) + 1) % 3
	c.kill(away)
	bob := w.identity("expelled-bob")
	token := w.token(bob)
	account, err := w.authority.Revoke(bob.PublicKey())
	if err != nil {
		t.Fatal(err)
	}
	if err := system.SetAccount(within(t, 10*time.Second), account); err != nil {
		t.Fatal(err)
	}
	c.start(away)
	took := eventually(t, "the server that was away refuses who was expelled meanwhile", 30*time.Second, func() bool {
		r, err := w.dialRaw(bob, token, bob.Sign, c.servers[away])
		if err == nil {
			r.Close()
		}
		return errors.Is(err, nats.ErrAuthorization)
	})
	t.Logf("the server that was away refused after %v", took)
	if _, err := w.dialRaw(outcast, old, outcast.Sign, c.servers[away]); !errors.Is(err, nats.ErrAuthorization) {
		t.Errorf("what was revoked before the restart: %v", err)
	}
}

// routeCA issues the operator's certificates for the connections between servers.
type routeCA struct {
	t       testing.TB
	address net.IP
	cert    *x509.Certificate
	key     *ecdsa.PrivateKey
	file    string
}

func newRouteCA(t testing.TB, address net.IP) *routeCA {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "routes"}, NotBefore: time.Now().Add(-time.Minute),
		NotAfter: time.Now().Add(time.Hour), IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign,
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		t.Fatal(err)
	}
	cert, err := x509.ParseCertificate(der)
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(t.TempDir(), "routes.crt")
	writePEM(t, file, "CERTIFICATE", der)
	return &routeCA{t: t, address: address, cert: cert, key: key, file: file}
}

func (r *routeCA) issue(name string) (certFile, keyFile string) {
	r.t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		r.t.Fatal(err)
	}
	der, err := x509.CreateCertificate(rand.Reader, &x509.Certificate{
		SerialNumber: big.NewInt(time.Now().UnixNano()), Subject: pkix.Name{CommonName: name}, IPAddresses: []net.IP{r.address},
		NotBefore: time.Now().Add(-time.Minute), NotAfter: time.Now().Add(time.Hour),
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth, x509.ExtKeyUsageServerAuth},
	}, r.cert, key.Public(), r.key)
	if err != nil {
		r.t.Fatal(err)
	}
	keyDER, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		r.t.Fatal(err)
	}
	dir := r.t.TempDir()
	certFile, keyFile = filepath.Join(dir, "route.crt"), filepath.Join(dir, "route.key")
	writePEM(r.t, certFile, "CERTIFICATE", der)
	writePEM(r.t, keyFile, "PRIVATE KEY", keyDER)
	return certFile, keyFile
}

func writePEM(t testing.TB, path, kind string, der []byte) {
	t.Helper()
	if err := os.WriteFile(path, pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der}), 0o600); err != nil {
		t.Fatal(err)
	}
}

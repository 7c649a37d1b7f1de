package e2e

import (
	"crypto/sha256"
	"fmt"
	"hash"
	"io"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/detour-collective/dcol/lab/testbed"
)

// serve runs nginx on the server, unmodified, with MPTCP sockets.
func (w *world) serve(blocks ...string) {
	w.Helper()
	dir := filepath.Join(w.dir, "nginx")
	if err := os.Mkdir(dir, 0o755); err != nil {
		w.Fatal(err)
	}
	var b strings.Builder
	fmt.Fprintf(&b, "daemon off;\nuser root;\nworker_processes 1;\npid %s/pid;\nevents { worker_connections 512; }\nhttp {\naccess_log off;\n", dir)
	for _, kind := range []string{"client_body", "proxy", "fastcgi", "uwsgi", "scgi"} {
		fmt.Fprintf(&b, "%s_temp_path %s/%s;\n", kind, dir, kind)
	}
	fmt.Fprintf(&b, "root %s;\nserver { listen 80; listen [::]:80; listen 81; listen 82; listen 83; listen 84; listen 85; }\n%s}\n", webRoot, strings.Join(blocks, "\n"))
	config := filepath.Join(dir, "nginx.conf")
	if err := os.WriteFile(config, []byte(b.String()), 0o644); err != nil {
		w.Fatal(err)
	}
	log, err := os.Create(filepath.Join(w.dir, "nginx.log"))
	if err != nil {
		w.Fatal(err)
	}
	defer log.Close()
	cmd := w.host(server).Command(w.life(), program, "run", "--", "nginx", "-c", config, "-e", "stderr")
	cmd.Stdout, cmd.Stderr = log, log
	if err := cmd.Start(); err != nil {
		w.Fatal(err)
	}
	go cmd.Wait() // it ends with its host
	w.eventually("nginx listens", func() error {
		if w.run(server, "ss", "-Htln", "sport = :80") == "" {
			return fmt.Errorf("nothing listens")
		}
		return nil
	})
}

// url returns the file's URL on the server.
func (w *world) url() string { return fmt.Sprintf("http://%v/file", w.addr4(server)) }

// transfer is a running download. It reads slowly until it is ended, and a little faster while a test waits
// for progress. So it lasts as long as the test needs, on a machine of any speed.
type transfer struct {
	w       *world
	cmd     *testbed.Cmd
	stderr  strings.Builder
	got     atomic.Int64
	awaited atomic.Bool // goesOn waits
	hurry   chan struct{}
	once    sync.Once
	sum     hash.Hash
	ended   chan struct{}
	err     error // once ended
}

const (
	sip, gulp = 4 << 10, 64 << 10 // read at once
	sipEvery  = 20 * time.Millisecond
)

// curl begins a download by an unmodified curl, whose sockets dcol makes MPTCP.
func (w *world) curl(args ...string) *transfer {
	w.Helper()
	argv := []string{program, "run", "--", "curl", "--silent", "--show-error", "--fail", "--no-buffer"}
	return w.transfer(alice, append(argv, args...)...)
}

// transfer begins any download. Its data is the output of the command.
func (w *world) transfer(host string, argv ...string) *transfer {
	w.Helper()
	x := &transfer{w: w, hurry: make(chan struct{}), sum: sha256.New(), ended: make(chan struct{})}
	from, to, err := os.Pipe()
	if err != nil {
		w.Fatal(err)
	}
	x.cmd = w.host(host).Command(w.life(), argv[0], argv[1:]...)
	x.cmd.Stdout, x.cmd.Stderr = to, &x.stderr
	err = x.cmd.Start()
	to.Close()
	if err != nil {
		from.Close()
		w.Fatal(err)
	}
	go func() {
		defer close(x.ended)
		defer from.Close()
		x.read(from)
		x.err = x.cmd.Wait()
	}()
	w.Cleanup(func() { // before the network goes
		w.explain()
		select {
		case <-x.ended:
		default:
			_ = x.cmd.Process.Kill()
			x.once.Do(func() { close(x.hurry) })
			<-x.ended
		}
	})
	return x
}

func (x *transfer) read(from io.Reader) {
	tick := time.NewTicker(sipEvery)
	defer tick.Stop()
	buffer := make([]byte, gulp)
	hurried := false
	for {
		most := sip
		if hurried || x.awaited.Load() {
			most = gulp
		}
		n, err := from.Read(buffer[:most])
		x.sum.Write(buffer[:n])
		x.got.Add(int64(n))
		if err != nil {
			return
		}
		select {
		case <-x.hurry:
			hurried = true
		case <-tick.C:
		}
	}
}

// goesOn waits until much more has arrived than can have been under way. So data that arrives then was sent after
// this call.
func (x *transfer) goesOn() {
	x.w.Helper()
	const underWay = 3 << 19
	x.awaited.Store(true)
	defer x.awaited.Store(false)
	want := x.got.Load() + underWay
	stands := x.stands()
	x.w.eventually("the transfer goes on", func() error {
		stands()
		select {
		case <-x.ended:
			x.w.Fatalf("the transfer ended after %d bytes: %v: %s", x.got.Load(), x.err, x.stderr.String())
		default:
		}
		if got := x.got.Load(); got < want {
			return fmt.Errorf("%d bytes have arrived, not yet %d", got, want)
		}
		return nil
	})
}

// stillFor is the time without progress after which a transfer's sockets are shown.
const stillFor = 20 * time.Second

// stands returns a function that shows all hosts' sockets once the transfer has stood still for long, once.
func (x *transfer) stands() func() {
	got, since, shown := x.got.Load(), time.Now(), false
	return func() {
		x.w.Helper()
		switch now := x.got.Load(); {
		case now != got:
			got, since = now, time.Now()
		case !shown && time.Since(since) > stillFor:
			shown = true
			x.w.Logf("the transfer has stood still at %d bytes for %v", got, time.Since(since).Round(time.Second))
			x.w.showSockets()
		}
	}
}

// endsWell reads the rest and compares all of it with the server's data.
func (x *transfer) endsWell() {
	x.w.Helper()
	select {
	case <-x.ended:
		x.w.Fatalf("the transfer ended too soon, after %d bytes: %v: %s", x.got.Load(), x.err, x.stderr.String())
	default:
	}
	x.isIntact()
}

// isIntact is endsWell for a transfer that may have ended already.
func (x *transfer) isIntact() {
	x.w.Helper()
	x.once.Do(func() { close(x.hurry) })
	began, had := time.Now(), x.got.Load()
	for stands, over := x.stands(), false; !over; {
		select {
		case <-x.ended:
			x.w.Logf("the other %d MB took %v", (x.got.Load()-had)>>20, time.Since(began).Round(time.Millisecond))
			over = true
		case <-time.After(time.Second):
			stands()
			if time.Since(began) > 2*patience {
				x.w.Fatalf("the transfer hangs at %d bytes of %d", x.got.Load(), fileSize)
			}
		}
	}
	switch {
	case x.err != nil:
		x.w.Fatalf("the transfer failed after %d bytes: %v: %s", x.got.Load(), x.err, x.stderr.String())
	case [sha256.Size]byte(x.sum.Sum(nil)) != fileSum:
		x.w.Fatalf("the transfer is damaged: %d bytes of %d", x.got.Load(), fileSize)
	}
}

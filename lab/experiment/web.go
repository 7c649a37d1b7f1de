package experiment

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"hash"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"github.com/detour-collective/dcol/lab/scenario"
)

const webFile = "file"

// ErrCorrupt is the error of a download that differs from what the server has.
var ErrCorrupt = errors.New("what arrived is not what was sent")

// nginx is the command line of a web server with that configuration.
func nginx(config string) []string {
	return []string{"nginx", "-c", config, "-e", "stderr"}
}

// webConfig writes nginx's configuration and, once, the file it serves.
func (l *Lab) webConfig(dir string) (string, error) {
	scratch := filepath.Join(dir, "nginx")
	if err := os.MkdirAll(scratch, 0o755); err != nil {
		return "", fmt.Errorf("nginx's folder: %w", err)
	}
	var b strings.Builder
	fmt.Fprintf(&b, "daemon off;\nuser root;\nworker_processes 1;\npid %s/pid;\nevents { worker_connections 512; }\nhttp {\n\taccess_log off;\n", scratch)
	for _, kind := range []string{"client_body", "proxy", "fastcgi", "uwsgi", "scgi"} {
		fmt.Fprintf(&b, "\t%s_temp_path %s/%s;\n", kind, scratch, kind)
	}
	fmt.Fprintf(&b, "\tserver {\n\t\tlisten %d;\n\t\tlisten [::]:%[1]d;\n\t\troot %s;\n\t}\n}\n", l.Scenario.Workload.Port, webRoot(l.opts.Out))
	config := filepath.Join(dir, "nginx.conf")
	if err := os.WriteFile(config, []byte(b.String()), 0o644); err != nil {
		return "", fmt.Errorf("nginx's configuration: %w", err)
	}
	return config, nil
}

// webRoot is the folder that web servers serve.
func webRoot(out string) string { return filepath.Join(out, "www") }

// makeFile writes the file to download, once: noise, so that nothing can shorten it
// and every misplaced byte shows. The sum is written last: it marks the file as
// complete.
func makeFile(out string, s *scenario.Scenario) error {
	size := int64(s.Workload.Size)
	path := filepath.Join(webRoot(out), webFile)
	if info, err := os.Stat(path); err == nil && info.Size() == size {
		if _, err := os.Stat(path + ".sha256"); err == nil {
			return nil
		}
	}
	if err := os.MkdirAll(webRoot(out), 0o755); err != nil {
		return err
	}
	f, err := os.Create(path)
	if err != nil {
		return err
	}
	defer f.Close()
	sum := sha256.New()
	noise := rand.NewChaCha8([32]byte{byte(s.Seed)})
	if _, err := io.CopyN(io.MultiWriter(f, sum), noise, size); err != nil {
		return err
	}
	return os.WriteFile(path+".sha256", []byte(hex.EncodeToString(sum.Sum(nil))), 0o644)
}

// web measures a download by curl: the goodput is counted where curl writes
// what it got, from the skip to the last byte.
func (x *execution) web(ctx context.Context) error {
	meter := newMeter()
	argv := []string{"curl", "--silent", "--show-error", "--fail", "--no-buffer"}
	if x.local.IsValid() {
		argv = append(argv, "--interface", x.local.String())
	}
	p, err := x.runClient(ctx, "curl", append(argv, fmt.Sprintf("http://%s/%s", x.target, webFile)), meter)
	if err != nil {
		return err
	}
	want, err := os.ReadFile(filepath.Join(webRoot(x.lab.opts.Out), webFile+".sha256"))
	if err != nil {
		return fmt.Errorf("read the sum of the file: %w", err)
	}
	same := hex.EncodeToString(meter.sum.Sum(nil)) == string(want)
	x.result.SHA256OK = &same
	if !same {
		return p.trouble(fmt.Errorf("%w: %d bytes of %d", ErrCorrupt, meter.total(), x.workload.Size))
	}
	seconds, carried, err := meter.since(x.began.Add(x.workload.Skip.Std()))
	if err != nil {
		return p.trouble(err)
	}
	x.result.Bytes = carried
	x.result.MeasuredSeconds = seconds
	x.result.GoodputMbps = float64(carried) * 8 / 1e6 / seconds
	x.result.LongestStallMS = float64(meter.longestStall()) / float64(time.Millisecond)
	return nil
}

// meter is an io.Writer that notes when how much was written.
type meter struct {
	mu    sync.Mutex
	sum   hash.Hash
	notes []note
}

type note struct {
	at    time.Time
	total int64
}

func newMeter() *meter { return &meter{sum: sha256.New()} }

func (m *meter) Write(data []byte) (int, error) {
	now := time.Now()
	m.mu.Lock()
	defer m.mu.Unlock()
	m.notes = append(m.notes, note{now, m.totalLocked() + int64(len(data))})
	return m.sum.Write(data)
}

func (m *meter) totalLocked() int64 {
	if len(m.notes) == 0 {
		return 0
	}
	return m.notes[len(m.notes)-1].total
}

func (m *meter) total() int64 {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.totalLocked()
}

// since is the time from a moment to the last byte, and what came in it.
func (m *meter) since(moment time.Time) (seconds float64, carried int64, err error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	before := int64(0)
	for _, n := range m.notes {
		if n.at.After(moment) {
			break
		}
		before = n.total
	}
	if len(m.notes) == 0 || m.totalLocked() == before {
		return 0, 0, fmt.Errorf("the download of %d bytes was over before there was anything to measure; use a larger size or a shorter skip",
			m.totalLocked())
	}
	return m.notes[len(m.notes)-1].at.Sub(moment).Seconds(), m.totalLocked() - before, nil
}

// longestStall is the longest time between two writes.
func (m *meter) longestStall() time.Duration {
	m.mu.Lock()
	defer m.mu.Unlock()
	longest := time.Duration(0)
	for i := 1; i < len(m.notes); i++ {
		longest = max(longest, m.notes[i].at.Sub(m.notes[i-1].at))
	}
	return longest
}

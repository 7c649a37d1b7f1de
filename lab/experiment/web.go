package experiment

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"hash"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/detour-collective/dcol/internal/units"
	"github.com/detour-collective/dcol/lab/crew"
	"github.com/detour-collective/dcol/lab/report"
	"github.com/detour-collective/dcol/lab/runner"
	"github.com/detour-collective/dcol/lab/scenario"
	"github.com/detour-collective/dcol/lab/stats"
)

// webFile returns the name of a file of that size.
func webFile(size units.Size) string { return fmt.Sprintf("noise-%d", int64(size)) }

// nginx returns the command line of a web server with that configuration.
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

// webRoot returns the folder that web servers serve.
func webRoot(out string) string { return filepath.Join(out, "www") }

// makeFiles writes the files that the variants download. Their bytes are random, so that nothing can compress them and
// every misplaced byte is noticed.
func makeFiles(out string, s *scenario.Scenario, variants []string) error {
	if err := os.MkdirAll(webRoot(out), 0o755); err != nil {
		return err
	}
	for _, name := range variants {
		variant, _ := s.Variant(name) // options are checked
		if err := makeFile(webRoot(out), s.WorkloadIn(variant).Size, s.Seed); err != nil {
			return err
		}
	}
	return nil
}

// makeFile writes a file unless it exists. It writes the checksum last, which marks the
// file as complete.
func makeFile(dir string, size units.Size, seed int64) error {
	path := filepath.Join(dir, webFile(size))
	if info, err := os.Stat(path); err == nil && info.Size() == int64(size) {
		if _, err := os.Stat(path + sumSuffix); err == nil {
			return nil
		}
	}
	f, err := os.Create(path)
	if err != nil {
		return err
	}
	defer f.Close()
	sum := sha256.New()
	noise := rand.NewChaCha8([32]byte{byte(seed)})
	if _, err := io.CopyN(io.MultiWriter(f, sum), noise, int64(size)); err != nil {
		return err
	}
	return os.WriteFile(path+sumSuffix, []byte(hex.EncodeToString(sum.Sum(nil))), 0o644)
}

const sumSuffix = ".sha256"

// web measures downloads by curl, one after another. A new curl makes each.
func (x *execution) web(ctx context.Context) error {
	want, err := os.ReadFile(filepath.Join(webRoot(x.lab.opts.Out), webFile(x.workload.Size)+sumSuffix))
	if err != nil {
		return fmt.Errorf("read the sum of the file: %w", err)
	}
	var took []time.Duration
	began := time.Now()
	for range x.workload.Count {
		d, err := x.fetch(ctx, string(want))
		if err != nil {
			return err
		}
		took = append(took, d)
	}
	x.result.CompletionSeconds = time.Since(began).Seconds()
	x.result.Latency = report.NewLatency(took)
	if x.workload.Count > 1 { // one download is measured from the times of curl's output
		sum := time.Duration(0)
		for _, d := range took {
			sum += d
		}
		x.result.Bytes = int64(x.workload.Size) * int64(x.workload.Count)
		x.result.MeasuredSeconds = sum.Seconds()
		x.result.GoodputMbps = float64(x.result.Bytes) * 8 / 1e6 / sum.Seconds()
	}
	return nil
}

// fetch downloads the file once and verifies its checksum. It returns the duration that curl measured. This excludes
// the start of curl's process and ends with the last byte.
func (x *execution) fetch(ctx context.Context, want string) (time.Duration, error) {
	meter := newMeter()
	argv := []string{"curl", "--silent", "--show-error", "--fail", "--no-buffer", "--write-out", `%{stderr}%{time_total}\n`}
	if x.local.IsValid() {
		argv = append(argv, "--interface", x.local.String())
	}
	if proxy := x.proxy(); proxy != "" {
		argv = append(argv, "--proxytunnel", "--proxy", proxy)
	}
	p, err := x.runClient(ctx, "curl", append(argv, fmt.Sprintf("http://%s/%s", x.target, webFile(x.workload.Size))), meter)
	if err != nil {
		return 0, err
	}
	same := hex.EncodeToString(meter.sum.Sum(nil)) == want
	x.result.SHA256OK = &same
	if !same {
		return 0, p.Trouble(fmt.Errorf("%w: %d bytes of %d", runner.ErrCorrupt, meter.total(), x.workload.Size))
	}
	x.result.LongestStallMS = max(x.result.LongestStallMS, stats.Milliseconds(meter.longestStall()))
	if x.workload.Count == 1 {
		seconds, carried, err := meter.since(x.began.Add(x.workload.Skip.Std()))
		if err != nil {
			return 0, p.Trouble(err)
		}
		x.result.Bytes, x.result.MeasuredSeconds = carried, seconds
		x.result.GoodputMbps = float64(carried) * 8 / 1e6 / seconds
	}
	return curlTime(p)
}

// curlTime reads the last number of seconds in curl's log.
func curlTime(p *crew.Process) (time.Duration, error) {
	text, _ := p.Output() // an error leaves text empty
	lines := strings.Split(strings.TrimSpace(text), "\n")
	last := lines[len(lines)-1]
	seconds, err := strconv.ParseFloat(last, 64)
	if err != nil || !(seconds > 0) {
		return 0, p.Trouble(fmt.Errorf("it does not say how long it took, but %q", last))
	}
	return time.Duration(seconds * float64(time.Second)), nil
}

// meter is an io.Writer that records the time and size of each write.
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

// since returns the time from moment to the last byte, and the bytes that arrived in that time.
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

// longestStall returns the longest time between two writes.
func (m *meter) longestStall() time.Duration {
	m.mu.Lock()
	defer m.mu.Unlock()
	longest := time.Duration(0)
	for i := 1; i < len(m.notes); i++ {
		longest = max(longest, m.notes[i].at.Sub(m.notes[i-1].at))
	}
	return longest
}

package bus

import (
	"bufio"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"runtime/debug"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/detour-collective/dcol/internal/collective"
)

// asMembers is an environment variable that makes the test's program act as many members, so that their cost is not
// counted as the server's.
const asMembers = "DCOL_TEST_MEMBERS"

// membersJob is the other process's task.
type membersJob struct {
	Server  Endpoint
	Members []struct {
		Files collective.Files
		JWT   string
	}
}

func manyMembers(file string) int {
	var job membersJob
	data, err := os.ReadFile(file)
	if err == nil {
		err = json.Unmarshal(data, &job)
	}
	for _, m := range job.Members {
		if err != nil {
			break
		}
		var id *collective.Identity
		if id, err = collective.Load(m.Files, quiet()); err == nil {
			_, err = Connect(Config{Identity: id, JWT: func() (string, error) { return m.JWT, nil }, Servers: []Endpoint{job.Server}, Log: quiet()}, nothing)
		}
	}
	if err != nil {
		fmt.Println(err)
		return 1
	}
	fmt.Println("connected")
	os.Stdin.Read(make([]byte, 1)) // until the test ends
	return 0
}

// BenchmarkConnections measures the cost of a member's connection to the embedded server.
func BenchmarkConnections(b *testing.B) {
	const members = 1000
	for b.Loop() {
		w := newWorld(b)
		s := w.serve(b.TempDir(), "127.0.0.1:0")
		job := membersJob{Server: s.Endpoint()}
		for i := range members {
			files := w.files(collective.Request{Name: fmt.Sprintf("member%d", i)})
			job.Members = append(job.Members, struct {
				Files collective.Files
				JWT   string
			}{files, w.token(w.load(files))})
		}
		data, err := json.Marshal(job)
		if err != nil {
			b.Fatal(err)
		}
		file := filepath.Join(b.TempDir(), "job")
		if err := os.WriteFile(file, data, 0o600); err != nil {
			b.Fatal(err)
		}
		heap, rss := memory(b)

		self, err := os.Executable()
		if err != nil {
			b.Fatal(err)
		}
		cmd := exec.Command(self)
		cmd.Env = append(os.Environ(), asMembers+"="+file)
		cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
		stdin, err := cmd.StdinPipe()
		if err != nil {
			b.Fatal(err)
		}
		stdout, err := cmd.StdoutPipe()
		if err != nil {
			b.Fatal(err)
		}
		begin := time.Now()
		if err := cmd.Start(); err != nil {
			b.Fatal(err)
		}
		if said, err := bufio.NewReader(stdout).ReadString('\n'); err != nil || !strings.HasPrefix(said, "connected") {
			b.Fatal(said, err)
		}
		took := time.Since(begin)
		if n := s.Connections(); n != members {
			b.Fatalf("%d of %d are connected", n, members)
		}
		heapAfter, rssAfter := memory(b)
		b.ReportMetric(float64(heapAfter-heap)/members, "heap+stack-B/member")
		b.ReportMetric(float64(rssAfter-rss)/members, "rss-B/member")
		b.ReportMetric(members/took.Seconds(), "connects/s")
		stdin.Close()
		cmd.Wait()
	}
}

// memory returns what the runtime uses for heap and stacks, and the process's resident memory, in bytes.
func memory(b *testing.B) (heap, rss int64) {
	b.Helper()
	debug.FreeOSMemory()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	data, err := os.ReadFile("/proc/self/statm")
	if err != nil {
		b.Fatal(err)
	}
	var pages int64
	if _, err := fmt.Sscanf(string(data), "%d %d", new(int64), &pages); err != nil {
		b.Fatal(err)
	}
	return int64(m.HeapInuse + m.StackInuse), pages * int64(os.Getpagesize())
}

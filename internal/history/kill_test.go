package history

import (
	"bufio"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/detour-collective/dcol/internal/api"
)

// writeForever is an environment variable with the file to which this program adds minutes until it is killed. After
// each minute it prints how many it has added.
const writeForever = "DCOL_TEST_WRITE_HISTORY"

func TestMain(m *testing.M) {
	if path := os.Getenv(writeForever); path != "" {
		fmt.Fprintln(os.Stderr, addForever(path))
		os.Exit(1)
	}
	os.Exit(m.Run())
}

func addForever(path string) error {
	s, err := Open(path)
	if err != nil {
		return err
	}
	list, err := s.Read(api.StepMinute, time.Time{}, noon.AddDate(10, 0, 0))
	for n := len(list); err == nil; n++ {
		fmt.Println(n)
		err = s.Add(used(noon.Add(time.Duration(n)*time.Minute), 1))
	}
	return err
}

// If a program is killed while it writes, the file has everything that it had written before.
func TestKilledWhileItWrites(t *testing.T) {
	path := filepath.Join(t.TempDir(), "history.db")
	for round := range 8 {
		written := writeAndKill(t, path, time.Duration(1+7*round)*time.Millisecond)
		s := openStore(t, path)
		minutes := read(t, s, api.StepMinute)
		if n := len(minutes); n != written && n != written+1 {
			t.Fatalf("%d minutes were written, and %d are there", written, n)
		}
		var sum uint64
		for _, p := range read(t, s, api.StepHour) {
			sum += p.Gained.DetourBytes
		}
		if sum != uint64(len(minutes)) {
			t.Errorf("minutes have %d bytes, hours %d", len(minutes), sum)
		}
		s.Close()
	}
}

// writeAndKill lets another process add minutes, kills it a while later, and returns how many it reported.
func writeAndKill(t *testing.T, path string, after time.Duration) (written int) {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), os.Args[0])
	cmd.Env = append(os.Environ(), writeForever+"="+path)
	var failed strings.Builder
	cmd.Stderr = &failed
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	lines := bufio.NewScanner(out)
	for n := 0; lines.Scan(); n++ {
		if written, err = strconv.Atoi(lines.Text()); err != nil {
			t.Fatal(err)
		}
		if n == 3 {
			time.AfterFunc(after, func() { _ = cmd.Process.Kill() })
		}
	}
	_ = cmd.Wait()
	if failed.Len() > 0 {
		t.Fatal(failed.String())
	}
	return written
}

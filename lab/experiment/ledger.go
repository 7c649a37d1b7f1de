package experiment

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/detour-collective/dcol/lab/report"
	"github.com/detour-collective/dcol/lab/scenario"
)

// ledger is where runs are recorded as they end, so that an experiment that was
// interrupted goes on from there. It is a folder: a file for every run, and one that
// says what they depend on.
type ledger struct {
	dir  string
	head ledgerHead
}

// ledgerHead is what recorded runs depend on. Runs of another kernel, program or
// scenario do not belong together.
type ledgerHead struct {
	// Scenario is a digest of all that matters to a run; not of how often it is
	// repeated and what is expected.
	Scenario    string             `json:"scenario_sha256"`
	Program     string             `json:"program_sha256,omitempty"` // the dcol executable
	Environment report.Environment `json:"environment"`
	Started     time.Time          `json:"started"`
	Seconds     float64            `json:"seconds"` // all sessions together
}

const headFile = "experiment.json"

// newLedgerHead describes an experiment that begins now.
func newLedgerHead(s *scenario.Scenario, program string, e report.Environment) (ledgerHead, error) {
	h := ledgerHead{Environment: e, Started: time.Now()}
	essence := *s
	essence.Repetitions, essence.Expects = 0, nil
	data, err := json.Marshal(essence)
	if err != nil {
		return h, fmt.Errorf("describe the scenario: %w", err)
	}
	sum := sha256.Sum256(data)
	h.Scenario = hex.EncodeToString(sum[:])
	if s.UsesDCol() || s.Workload.MadeByDCol() {
		h.Program, err = fileSum(program)
	}
	return h, err
}

func fileSum(path string) (string, error) {
	f, err := os.Open(path)
	if err != nil {
		return "", fmt.Errorf("read the dcol program: %w", err)
	}
	defer f.Close()
	sum := sha256.New()
	if _, err := io.Copy(sum, f); err != nil {
		return "", fmt.Errorf("read the dcol program: %w", err)
	}
	return hex.EncodeToString(sum.Sum(nil)), nil
}

// differs says in what way runs of another experiment do not belong to this one;
// nothing if they do.
func (h ledgerHead) differs(other ledgerHead) string {
	a, b := h.Environment, other.Environment
	switch {
	case h.Scenario != other.Scenario:
		return "of another version of the scenario"
	case h.Program != other.Program:
		return "of another version of dcol"
	case a.Kernel != b.Kernel:
		return "of Linux " + b.Kernel
	case a.Backend != b.Backend:
		return "with links by " + b.Backend
	case a.CPUs != b.CPUs:
		return fmt.Sprintf("of a machine with %d CPUs", b.CPUs)
	}
	for name, version := range a.Programs {
		if b.Programs[name] != version && name != "dcol" { // dcol's sum says more
			return fmt.Sprintf("with %s %q", name, b.Programs[name])
		}
	}
	return ""
}

// openLedger opens the record in a folder. Runs that are there already are kept if
// resume says so and they belong to this experiment; if they do not, other says why.
func openLedger(dir string, head ledgerHead, resume bool) (l *ledger, runs []report.Run, other string, err error) {
	l = &ledger{dir: dir, head: head}
	var before ledgerHead
	switch err := readJSON(filepath.Join(dir, headFile), &before); {
	case errors.Is(err, fs.ErrNotExist):
	case err != nil:
		other = "not to be read: " + err.Error()
	default:
		other = head.differs(before)
		if resume && other == "" {
			l.head.Started, l.head.Seconds = before.Started, before.Seconds
			runs, err := l.load()
			return l, runs, "", err
		}
	}
	if !resume {
		other = ""
	}
	if err := os.RemoveAll(dir); err != nil {
		return nil, nil, other, fmt.Errorf("begin the record of runs: %w", err)
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return nil, nil, other, fmt.Errorf("begin the record of runs: %w", err)
	}
	err = l.writeHead()
	return l, nil, other, err
}

// load reads the recorded runs, in the order in which they began. A file that was
// not written by us is an error, as nobody else has business there.
func (l *ledger) load() ([]report.Run, error) {
	files, err := filepath.Glob(filepath.Join(l.dir, "*.json"))
	if err != nil {
		return nil, err
	}
	var runs []report.Run
	for _, f := range files {
		if filepath.Base(f) == headFile {
			continue
		}
		var run report.Run
		if err := readJSON(f, &run); err != nil {
			return nil, fmt.Errorf("%w; remove that file to have the run repeated", err)
		}
		runs = append(runs, run)
	}
	slices.SortStableFunc(runs, func(a, b report.Run) int { return a.Started.Compare(b.Started) })
	return runs, nil
}

// add records a run. Names have no plus sign in them, so that no two runs share a
// file.
func (l *ledger) add(run report.Run) error {
	name := fmt.Sprintf("%s+%s+%d+%d.json", run.Variant, run.Procedure, run.Repetition, run.Attempt)
	return writeJSON(filepath.Join(l.dir, name), run)
}

// spent adds the time of a session.
func (l *ledger) spent(d time.Duration) error {
	l.head.Seconds += d.Seconds()
	return l.writeHead()
}

func (l *ledger) writeHead() error { return writeJSON(filepath.Join(l.dir, headFile), l.head) }

func readJSON(path string, into any) error {
	data, err := os.ReadFile(path)
	if err != nil {
		return fmt.Errorf("read the record of runs: %w", err)
	}
	if err := json.Unmarshal(data, into); err != nil {
		return fmt.Errorf("read the record of runs: %s: %w", path, err)
	}
	return nil
}

// writeJSON leaves the whole file or nothing: an interrupt may come at any time.
func writeJSON(path string, what any) error {
	data, err := json.Marshal(what)
	if err != nil {
		return fmt.Errorf("record: %w", err)
	}
	draft := strings.TrimSuffix(path, ".json") + ".draft"
	if err := os.WriteFile(draft, data, 0o644); err != nil {
		return fmt.Errorf("record: %w", err)
	}
	if err := os.Rename(draft, path); err != nil {
		return fmt.Errorf("record: %w", err)
	}
	return nil
}

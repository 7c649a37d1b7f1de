package runner

import (
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/detour-collective/dcol/lab/jsonfile"
	"github.com/detour-collective/dcol/lab/programs"
	"github.com/detour-collective/dcol/lab/report"
	"github.com/detour-collective/dcol/lab/scenario"
)

// Ledger records runs as they end, so that an interrupted experiment can be resumed. It is a folder with a
// subfolder for every scenario, a file for every run, and a file that describes what the runs depend on.
type Ledger struct {
	Head Head
	dir  string
}

// Head identifies what recorded runs depend on. Runs of different kernels or programs cannot be
// combined. Runs of another version of a scenario cannot, either, but are dropped one scenario at a time.
type Head struct {
	// Scenarios are digests, by the scenarios' names.
	Scenarios   map[string]string  `json:"scenarios_sha256"`
	Program     string             `json:"program_sha256,omitempty"` // of both of dcol's programs, if one needs them
	Environment report.Environment `json:"environment"`
	Started     time.Time          `json:"started"`
	Seconds     float64            `json:"seconds"` // all sessions together
}

// Recorded is a run of a scenario.
type Recorded struct {
	Scenario string
	Run      report.Run
}

// Key identifies the run.
func (r Recorded) Key() Key {
	return Key{r.Scenario, r.Run.Variant, r.Run.Procedure, r.Run.Congestion, r.Run.Repetition}
}

const headFile = "experiment.json"

// NewHead describes an experiment on these scenarios that begins now.
func NewHead(scenarios []*scenario.Scenario, pair programs.Pair, e report.Environment) (h Head, err error) {
	h = Head{Scenarios: map[string]string{}, Environment: e, Started: time.Now()}
	for _, s := range scenarios {
		if h.Scenarios[s.Name], err = essence(*s); err != nil {
			return h, err
		}
	}
	if slices.ContainsFunc(scenarios, (*scenario.Scenario).RunsDCol) {
		h.Program, err = sum(pair.DCol, pair.Lab)
	}
	return h, err
}

// essence returns a digest of the scenario's properties that affect a run. It leaves out the number of repetitions, the
// expectations, and the congestion control, which is a property of each run.
func essence(s scenario.Scenario) (string, error) {
	s.Repetitions, s.Expects, s.Congestion, s.Varied = 0, nil, "", ""
	data, err := json.Marshal(s)
	if err != nil {
		return "", fmt.Errorf("describe the scenario: %w", err)
	}
	sum := sha256.Sum256(data)
	return hex.EncodeToString(sum[:]), nil
}

// sum returns the digest of files together.
func sum(paths ...string) (string, error) {
	sum := sha256.New()
	for _, path := range paths {
		f, err := os.Open(path)
		if err != nil {
			return "", fmt.Errorf("read dcol's programs: %w", err)
		}
		_, err = io.Copy(sum, f)
		f.Close()
		if err != nil {
			return "", fmt.Errorf("read dcol's programs: %w", err)
		}
	}
	return hex.EncodeToString(sum.Sum(nil)), nil
}

// differs describes how the runs of another experiment are incompatible with this one, or returns "".
// Programs that only one of them needed do not matter.
func (h Head) differs(other Head) string {
	a, b := h.Environment, other.Environment
	switch {
	case h.Program != other.Program && h.Program != "" && other.Program != "":
		return "of another version of dcol"
	case a.Kernel != b.Kernel:
		return "of Linux " + b.Kernel
	case a.Backend != b.Backend:
		return "with links by " + b.Backend
	case a.CPUs != b.CPUs:
		return fmt.Sprintf("of a machine with %d CPUs", b.CPUs)
	}
	for name, version := range a.Programs {
		before, there := b.Programs[name]
		if there && before != version && name != "dcol" { // dcol's checksum is more precise
			return fmt.Sprintf("with %s %q", name, before)
		}
	}
	return ""
}

// adopt merges the earlier head of the same folder into h.
func (h *Head) adopt(before Head) {
	h.Started, h.Seconds = before.Started, before.Seconds
	h.Program = cmp.Or(h.Program, before.Program)
	h.Environment.Programs = union(before.Environment.Programs, h.Environment.Programs)
	h.Scenarios = union(before.Scenarios, h.Scenarios)
}

// union returns the entries of both maps; if both have a key, that of b.
func union(a, b map[string]string) map[string]string {
	both := maps.Clone(b)
	for k, v := range a {
		if _, there := both[k]; !there {
			both[k] = v
		}
	}
	return both
}

// OpenLedger opens the record in a folder. It keeps the existing runs if resume is set and they are
// compatible. others describes the incompatible ones. If the folder has other or unreadable content,
// OpenLedger returns an error and removes nothing.
func OpenLedger(dir string, head Head, resume bool) (l *Ledger, runs []Recorded, others []string, err error) {
	l = &Ledger{dir: dir, Head: head}
	var before Head
	err = jsonfile.Read(filepath.Join(dir, headFile), &before)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		if err := nobodys(dir); err != nil {
			return nil, nil, nil, err
		}
		err = l.clear()
		return l, nil, nil, err
	case !resume:
		err = l.clear()
		return l, nil, nil, err
	case err != nil:
		return nil, nil, nil, fmt.Errorf("read the record of runs: %w; --anew begins the record again, without the runs that it has", err)
	}
	if why := head.differs(before); why != "" {
		err = l.clear()
		return l, nil, []string{"the runs there are " + why}, err
	}
	l.Head.adopt(before)
	for _, name := range slices.Sorted(maps.Keys(head.Scenarios)) {
		if was, there := before.Scenarios[name]; there && was != head.Scenarios[name] {
			others = append(others, fmt.Sprintf("the runs of %s there are of another version of the scenario", name))
			if err := os.RemoveAll(filepath.Join(dir, name)); err != nil {
				return nil, nil, others, fmt.Errorf("begin the record of runs of %s: %w", name, err)
			}
		}
	}
	if err := l.writeHead(); err != nil {
		return nil, nil, others, err
	}
	runs, err = l.load(slices.Sorted(maps.Keys(head.Scenarios)))
	return l, runs, others, err
}

// nobodys returns an error if a folder that is no record is not empty, because its content may belong to somebody.
func nobodys(dir string) error {
	files, err := os.ReadDir(dir)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("begin the record of runs: %w", err)
	}
	for _, f := range files {
		if !strings.HasPrefix(f.Name(), "."+headFile) { // a file of package durable, whose writing was interrupted
			return fmt.Errorf("%s has no record of runs, but %s: move that elsewhere, or choose another folder with --out", dir, f.Name())
		}
	}
	return nil
}

// clear begins the record anew, and removes the earlier runs.
func (l *Ledger) clear() error {
	if err := os.RemoveAll(l.dir); err != nil {
		return fmt.Errorf("begin the record of runs: %w", err)
	}
	if err := os.MkdirAll(l.dir, 0o755); err != nil {
		return fmt.Errorf("begin the record of runs: %w", err)
	}
	return l.writeHead()
}

// load reads the recorded runs of scenarios in the order in which they began. A file in another format is an
// error, because nothing else belongs there.
func (l *Ledger) load(scenarios []string) ([]Recorded, error) {
	var runs []Recorded
	for _, name := range scenarios {
		files, err := filepath.Glob(filepath.Join(l.dir, name, "*.json"))
		if err != nil {
			return nil, err
		}
		for _, f := range files {
			r := Recorded{Scenario: name}
			if err := jsonfile.Read(f, &r.Run); err != nil {
				return nil, fmt.Errorf("read the record of runs: %w; remove that file to have the run repeated", err)
			}
			runs = append(runs, r)
		}
	}
	slices.SortStableFunc(runs, func(a, b Recorded) int { return a.Run.Started.Compare(b.Run.Started) })
	return runs, nil
}

// Add records a run. Names have no plus sign in them, so that no two runs share a file.
func (l *Ledger) Add(r Recorded) error {
	dir := filepath.Join(l.dir, r.Scenario)
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return fmt.Errorf("record: %w", err)
	}
	name := fmt.Sprintf("%s+%s+%s+%d+%d.json", r.Run.Variant, r.Run.Procedure, r.Run.Congestion, r.Run.Repetition, r.Run.Attempt)
	return jsonfile.Write(filepath.Join(dir, name), r.Run)
}

// Spent adds the time of a session.
func (l *Ledger) Spent(d time.Duration) error {
	l.Head.Seconds += d.Seconds()
	return l.writeHead()
}

func (l *Ledger) writeHead() error { return jsonfile.Write(filepath.Join(l.dir, headFile), l.Head) }

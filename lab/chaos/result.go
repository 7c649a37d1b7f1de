package chaos

import (
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/detour-collective/dcol/lab/jsonfile"
)

// Schema is the version of Result.
const Schema = "dcol.chaos/1"

// Result is out/chaos/result.json.
type Result struct {
	Schema    string `json:"schema"`
	Version   string `json:"version"` // of dcol
	Seed      uint64 `json:"seed"`
	Faults    int    `json:"faults"` // that count
	Sequences int    `json:"sequences"`
	// Findings, by kind.
	Broken       int `json:"broken"`
	WrongBytes   int `json:"wrong_bytes"`
	Unauthorised int `json:"unauthorised"`
	Unrecovered  int `json:"unrecovered"`
	Grown        int `json:"grown"`
	Died         int `json:"died"`
	// Held counts connections that the kernel of an end hung or damaged. They are no findings.
	Held int `json:"held_by_kernel"`
	// Failures are the sequences with findings.
	Failures []Failure `json:"failures"`
	// Errors lists the seeds of sequences that could not be carried out because the lab failed. Repeated lists such errors
	// after which a sequence was repeated.
	Errors   map[uint64]string   `json:"errors"`
	Repeated map[uint64][]string `json:"repeated"`
	// Exempt counts connections that need not have two paths, by the reason.
	Exempt map[string]int `json:"exempt"`
	// Kinds counts the faults that count, by kind.
	Kinds map[string]int `json:"kinds"`
	// LateMS is the highest 99th percentile of packets' lateness on emulated links in any sequence.
	LateMS float64 `json:"late_p99_ms"`
}

// Failure is a sequence with findings.
type Failure struct {
	Seed    uint64  `json:"seed"`
	Verdict Verdict `json:"verdict"`
	Again   string  `json:"again,omitempty"`
}

// Bad reports whether there are findings or sequences that could not be carried out.
func (r Result) Bad() bool { return len(r.Failures)+len(r.Errors) > 0 }

func (r Result) write(dir string) error {
	if err := jsonfile.Write(filepath.Join(dir, "result.json"), r); err != nil {
		return fmt.Errorf("write the result: %w", err)
	}
	return nil
}

func (c *campaign) result() Result {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.resultLocked()
}

func (c *campaign) resultLocked() Result {
	r := Result{
		Schema: Schema, Version: c.Version, Seed: c.Seed, Faults: c.counted, Sequences: len(c.outcomes),
		Failures: []Failure{}, Errors: map[uint64]string{}, Kinds: map[string]int{},
		Repeated: map[uint64][]string{}, Exempt: map[string]int{},
	}
	late := time.Duration(0)
	for _, seed := range slices.Sorted(maps.Keys(c.outcomes)) {
		r.add(c.outcomes[seed])
		late = max(late, c.outcomes[seed].Late)
	}
	r.LateMS = float64(late.Microseconds()) / 1000
	return r
}

func (r *Result) add(o Outcome) {
	for _, k := range o.Strikes {
		if k.Counts {
			r.Kinds[string(k.Fault.Kind)]++
		}
	}
	if o.Error != "" {
		r.Errors[o.Seed] = o.Error
	}
	if len(o.Repeated) > 0 {
		r.Repeated[o.Seed] = o.Repeated
	}
	for why, n := range o.Exempt {
		r.Exempt[why] += n
	}
	v := o.Verdict
	r.Held += len(v.Held)
	if !v.Bad() {
		return
	}
	r.Failures = append(r.Failures, Failure{o.Seed, v, o.Again})
	r.Broken += len(v.Broken)
	r.WrongBytes += len(v.WrongBytes)
	r.Unauthorised += len(v.Unauthorised)
	r.Unrecovered += len(v.Unrecovered)
	r.Grown += len(v.Grown)
	r.Died += len(v.Died)
}

// text returns the findings as text.
func (v Verdict) text() string {
	var b strings.Builder
	all := v.all()
	for _, kind := range slices.Sorted(maps.Keys(all)) {
		for _, finding := range all[kind] {
			fmt.Fprintf(&b, "  %s: %s\n", strings.ToUpper(kind), finding)
		}
	}
	return b.String()
}

// resume reads what an earlier start left.
func (c *campaign) resume() error {
	version := filepath.Join(c.dir, "version")
	was, err := os.ReadFile(version)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return os.WriteFile(version, []byte(c.Version), 0o644)
	case err != nil:
		return err
	case string(was) != c.Version:
		return fmt.Errorf("%s has results of dcol %s, this is %s: choose another seed, or remove the folder", c.dir, was, c.Version)
	}
	files, err := filepath.Glob(filepath.Join(c.dir, outcomesDir, "*.json"))
	if err != nil {
		return err
	}
	for _, file := range files {
		var o Outcome
		if err := jsonfile.Read(file, &o); err != nil {
			return fmt.Errorf("read an earlier outcome: %w; remove that file to have its sequence run again", err)
		}
		if o.Error != "" { // it is begun anew
			c.repeated[o.Seed] = append(o.Repeated, o.Error)
			continue
		}
		c.outcomes[o.Seed] = o
		c.counted += o.Counted
	}
	return nil
}

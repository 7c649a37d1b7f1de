package netstate

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"strings"
)

// DamagedError says that a record of sysctls could not be read whole.
type DamagedError struct {
	Record string // where the record was
	Aside  string // where the damaged file is kept
	Err    error  // what is wrong with it
	// Kept are the sysctls that could still be read. They stay in the record and are put back as ever.
	Kept []string
}

func (e *DamagedError) Error() string {
	kept := "None of them can be put back"
	if len(e.Kept) > 0 {
		kept = "Only " + strings.Join(e.Kept, ", ") + " can be put back"
	}
	return fmt.Sprintf("%s, the record of the sysctls that dcol changed, was damaged and is now %s (%v). %s", e.Record, e.Aside, e.Err, kept)
}

func (e *DamagedError) Unwrap() error { return e.Err }

// Damaged reports, as a *DamagedError, that the record at path was found damaged since the host booted. It goes on
// doing so until somebody removes the damaged file.
func Damaged(path string) error {
	bootID, err := Sysctl(bootIDKey)
	if err != nil {
		return err
	}
	aside := asidePath(path, bootID)
	content, err := os.ReadFile(aside)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("look at a damaged record: %w", err)
	}
	netns, err := currentNetNS()
	if err != nil {
		return err
	}
	_, cause := parseRecord(content)
	damaged := &DamagedError{Record: path, Aside: aside, Err: cause}
	for _, c := range salvage(content, bootID, netns) {
		damaged.Kept = append(damaged.Kept, strings.ReplaceAll(c.Key, "/", "."))
	}
	return damaged
}

// asidePath is where a damaged record is kept. What it says of sysctls is true of one boot only.
func asidePath(path, bootID string) string { return path + ".damaged-" + bootID }

var errNoRecord = errors.New("it has no list of sysctls")

func parseRecord(content []byte) (recordFile, error) {
	var f recordFile
	if err := json.Unmarshal(content, &f); err != nil {
		return f, err
	}
	switch {
	case f.Version != recordVersion:
		return f, fmt.Errorf("it has version %d, and this program knows %d", f.Version, recordVersion)
	case f.BootID == "" || f.NetNS == "":
		return f, errNoRecord
	}
	return f, nil
}

// salvage finds the changes that can be read in a damaged record, if that is certainly of this boot and namespace.
func salvage(content []byte, bootID, netns string) (changes []sysctlChange) {
	if !bytes.Contains(content, []byte(bootID)) || !bytes.Contains(content, []byte(netns)) {
		return nil
	}
	for i, b := range content {
		if b != '{' {
			continue
		}
		var c sysctlChange
		known := func(x sysctlChange) bool { return x.Key == c.Key }
		decoder := json.NewDecoder(bytes.NewReader(content[i:]))
		decoder.DisallowUnknownFields()
		if decoder.Decode(&c) == nil && c.Key != "" && !slices.ContainsFunc(changes, known) {
			changes = append(changes, c)
		}
	}
	return changes
}

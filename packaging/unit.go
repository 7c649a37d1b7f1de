// Package packaging has the files that an installation needs besides the program.
package packaging

import (
	_ "embed"
	"strconv"
	"strings"
)

//go:embed dcol.service
var unit string

// User is the user of the agent that systemd starts, in the form of sysusers.d(5).
//
//go:embed dcol.sysusers
var User string

// Unit is systemd's unit of the agent, for a program in a folder.
func Unit(folder string) string { return strings.ReplaceAll(unit, "@BINDIR@", folder) }

// Confine returns the command line that runs a program as systemd runs the agent: as another user, with the unit's capabilities
// and no way to get others. It needs the program setpriv.
func Confine(uid, gid int, program ...string) []string {
	held := "-all"
	for name := range strings.FieldsSeq(setting(unit, "AmbientCapabilities")) {
		held += ",+" + strings.ToLower(strings.TrimPrefix(name, "CAP_"))
	}
	return append([]string{
		"setpriv", "--reuid", strconv.Itoa(uid), "--regid", strconv.Itoa(gid), "--clear-groups", "--no-new-privs",
		"--bounding-set", held, "--inh-caps", held, "--ambient-caps", held,
	}, program...)
}

// setting returns the value of a key in a unit.
func setting(unit, key string) string {
	for line := range strings.Lines(unit) {
		if value, is := strings.CutPrefix(line, key+"="); is {
			return strings.TrimSpace(value)
		}
	}
	return ""
}

// Package packaging has the files that an installation needs besides the program.
package packaging

import (
	_ "embed"
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

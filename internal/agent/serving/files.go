package serving

import (
	"path/filepath"

	"github.com/detour-collective/dcol/internal/config"
	"github.com/detour-collective/dcol/internal/waypoint"
	"github.com/detour-collective/dcol/internal/waypoint/rules"
)

// Files are those in which the waypoint role remembers what outlives the agent.
type Files struct {
	Sysctls string // from before the role
	Given   string // used up of the quota, and whether the waypoint is switched off
	Counts  string // of bytes; in the runtime directory, as it concerns connections of the kernel that runs now
}

// FilesOf returns the files that settings lead to.
func FilesOf(settings *config.Config) Files {
	return Files{
		Sysctls: filepath.Join(settings.StateDir, "waypoint-sysctls.json"), Given: filepath.Join(settings.StateDir, "waypoint-given.json"),
		Counts: filepath.Join(settings.RunDir, "waypoint-bytes.json"),
	}
}

// IsLeft reports whether an agent has left what a waypoint needs for the next one.
func IsLeft(settings *config.Config) bool { return waypoint.Left(FilesOf(settings).Sysctls) }

// CleanUp removes what an agent has left. No agent may run.
func CleanUp(settings *config.Config) error {
	f := FilesOf(settings)
	return waypoint.CleanUp(f.Sysctls, f.Given, f.Counts, rules.Marks(settings.Waypoint.Marks))
}

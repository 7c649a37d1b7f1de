package openvpn

import (
	"context"
	"log/slog"
	"regexp"
	"strconv"
	"strings"
)

// Flags of a log line (OpenVPN: src/openvpn/error.h).
const (
	flagFatal    = 1 << 4
	flagNonfatal = 1 << 5
	flagWarn     = 1 << 6
)

// logLine is a line that openvpn writes with machine-readable-output.
type logLine struct {
	flags uint64
	text  string
}

// parseLog parses "1795235904.199454 40 WARNING: ...". Any other line, such as a message of the C
// library, counts as a warning.
func parseLog(line string) logLine {
	if fields := strings.SplitN(line, " ", 3); len(fields) == 3 {
		_, err := strconv.ParseFloat(fields[0], 64)
		flags, err2 := strconv.ParseUint(fields[1], 16, 64)
		if err == nil && err2 == nil {
			return logLine{flags: flags, text: fields[2]}
		}
	}
	return logLine{flags: flagWarn, text: line}
}

// expected matches warnings about deliberate choices of dcol (see the package comment), and
// messages about a requested end.
var expected = regexp.MustCompile(`cipher '?none'|'--(cipher|auth) none'|^event_wait : Interrupted system call`)

// ofPeer matches lines that begin with the name or address of a peer. Strangers can cause any
// number of them.
var ofPeer = regexp.MustCompile(`^([a-z0-9-]{1,63}/)?(\[[0-9a-fA-F:.%]+\]|[0-9.]+|[0-9a-fA-F:]+):\d{1,5} `)

// verdict matches errors about a certificate. openvpn logs some of them as other messages.
var verdict = regexp.MustCompile(`^VERIFY .*ERROR`)

// problem reports whether the line describes a problem on this side.
func (l logLine) problem() bool {
	bad := l.flags&(flagFatal|flagNonfatal|flagWarn) != 0 || verdict.MatchString(l.text)
	return bad && !expected.MatchString(l.text)
}

func (l logLine) level() slog.Level {
	switch {
	case !l.problem() || ofPeer.MatchString(l.text):
		return slog.LevelDebug
	case l.flags&flagFatal != 0:
		return slog.LevelError
	}
	return slog.LevelWarn
}

func (l logLine) write(log *slog.Logger) {
	log.Log(context.Background(), l.level(), "openvpn says", "line", l.text)
}

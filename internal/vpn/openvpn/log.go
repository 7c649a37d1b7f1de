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
	if stamp, rest, ok := strings.Cut(line, " "); ok && isStamp(stamp) {
		flags, text, _ := strings.Cut(rest, " ")
		if n, err := strconv.ParseUint(flags, 16, 64); err == nil {
			return logLine{flags: n, text: text}
		}
	}
	return logLine{flags: flagWarn, text: line}
}

// parseLogNotice parses ">LOG:time,flags,text", whose flags are letters. The log is received twice:
// here in one sequence with all other notices, and on standard output from the first line to the
// last.
func parseLogNotice(text string) (logLine, bool) {
	fields := strings.SplitN(text, ",", 3)
	if len(fields) < 3 {
		return logLine{}, false
	}
	l := logLine{text: fields[2]}
	for letter, flag := range map[string]uint64{"F": flagFatal, "N": flagNonfatal, "W": flagWarn} {
		if strings.Contains(fields[1], letter) {
			l.flags |= flag
		}
	}
	return l, true
}

func isStamp(s string) bool {
	seconds, fraction, ok := strings.Cut(s, ".")
	if !ok {
		return false
	}
	_, err1 := strconv.ParseUint(seconds, 10, 63)
	_, err2 := strconv.ParseUint(fraction, 10, 32)
	return err1 == nil && err2 == nil
}

// expected matches warnings about deliberate choices of dcol (see the package comment), and
// messages about a requested end.
var expected = regexp.MustCompile(`cipher '?none'|'--(cipher|auth) none'|^event_wait : Interrupted system call`)

// ofPeer matches lines that begin with the name or address of a peer. Strangers can cause any
// number of them.
var ofPeer = regexp.MustCompile(`^([a-z0-9-]{1,63}/)?(\[[0-9a-fA-F:.%]+\]|[0-9.]+|[0-9a-fA-F:]+):\d{1,5} `)

// verdict matches errors about a certificate, some of which are not logged as errors.
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

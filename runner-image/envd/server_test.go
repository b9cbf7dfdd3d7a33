package main

import (
	"bytes"
	"encoding/json"
	"io"
	"os"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

// recorder is the runner's end of a connection in tests: it says input and keeps what envd answers.
type recorder struct {
	input io.Reader
	hold  chan struct{} // when set, the end of input waits for it, as a runner that stays connected
	mu    sync.Mutex
	sent  bytes.Buffer
}

func (r *recorder) Read(p []byte) (int, error) {
	n, err := r.input.Read(p)
	if err == io.EOF && r.hold != nil {
		<-r.hold
	}
	return n, err
}

func (r *recorder) Write(p []byte) (int, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.sent.Write(p)
}

func (r *recorder) Close() error { return nil }

// answers gives the results by request id, and the output streams.
func (r *recorder) answers(t *testing.T) (results map[uint32]string, output map[byte]string) {
	t.Helper()
	r.mu.Lock()
	defer r.mu.Unlock()
	results, output = map[uint32]string{}, map[byte]string{}
	stream := bytes.NewReader(r.sent.Bytes())
	for {
		f, err := readFrame(stream)
		if err == io.EOF {
			return results, output
		}
		if err != nil {
			t.Fatal(err)
		}
		switch f.kind {
		case frameResult:
			results[f.id] = string(bytes.TrimSpace(f.payload))
		case frameData:
			output[f.payload[0]] += string(f.payload[1:])
		}
	}
}

// Orphans come to this process, as they do to envd, and never to whatever is PID 1 of the machine.
var testReaper = sync.OnceValue(func() *reaper {
	if err := prctl(prSetChildSubreaper, 1); err != nil {
		panic(err)
	}
	return newReaper(nil)
})

var testProcesses = sync.OnceValue(func() *processTable { return newProcessTable("/proc", new(atomic.Int64)) })

func testServer(t *testing.T) *server {
	t.Helper()
	accounts := currentUsers()
	return &server{
		exec: &executor{
			reaper: testReaper(), users: accounts, environ: []string{"PATH=" + os.Getenv("PATH"), "SEATRIAL_KEY=x", "KEEP=1"}, cwd: "/",
			running: newRunningSet(),
		},
		files:     &fileStore{users: accounts, limits: resourceLimits()},
		processes: testProcesses(),
		shutdown:  make(chan struct{}),
	}
}

func requestFrame(t *testing.T, id uint32, body map[string]any) []byte {
	t.Helper()
	text, err := json.Marshal(body)
	if err != nil {
		t.Fatal(err)
	}
	return appendFrame(nil, frameRequest, id, text)
}

// ask serves one connection that says the frames, until every request is answered.
func ask(t *testing.T, s *server, who role, requests int, frames ...[]byte) (map[uint32]string, map[byte]string) {
	t.Helper()
	r := &recorder{input: bytes.NewReader(bytes.Join(frames, nil)), hold: make(chan struct{})}
	done := make(chan error, 1)
	go func() { done <- s.serve(newConn(who, r)) }()
	for end := time.Now().Add(20 * time.Second); ; time.Sleep(time.Millisecond) {
		results, output := r.answers(t)
		if len(results) >= requests {
			close(r.hold)
			<-done
			return results, output
		}
		if time.Now().After(end) {
			t.Fatalf("answers after 20 s: %v", results)
		}
	}
}

func TestAFailedRequestLeavesTheConnectionOpen(t *testing.T) {
	results, _ := ask(t, testServer(t), roleAgent, 4,
		requestFrame(t, 1, map[string]any{"op": "dance"}),
		appendFrame(nil, frameRequest, 2, []byte("{not json")),
		requestFrame(t, 3, map[string]any{"op": "stat", "path": "relative"}),
		requestFrame(t, 4, map[string]any{"op": "exec", "argv": []string{"true"}}),
	)
	want := map[uint32]string{
		1: `{"error":{"kind":"bad-request","message":"unknown operation \"dance\""}}`,
		2: `{"error":{"kind":"bad-request","message":"request: invalid character 'n' looking for beginning of object key string"}}`,
		3: `{"error":{"kind":"bad-request","message":"path \"relative\" is not absolute"}}`,
	}
	for id, text := range want {
		if results[id] != text {
			t.Errorf("request %d: %s; want %s", id, results[id], text)
		}
	}
	var last struct{ OK execResult }
	if err := json.Unmarshal([]byte(results[4]), &last); err != nil || last.OK.Code == nil || *last.OK.Code != 0 {
		t.Errorf("request 4: %s; want code 0", results[4])
	}
}

func TestAPanicIsAnErrorOfItsRequest(t *testing.T) {
	s := testServer(t)
	s.files = nil
	results, _ := ask(t, s, roleAgent, 1, requestFrame(t, 1, map[string]any{"op": "mkdir", "path": "/x", "owner": "root"}))
	var got struct{ Error wireError }
	if err := json.Unmarshal([]byte(results[1]), &got); err != nil || got.Error.Kind != kindInternal {
		t.Fatalf("%s; want kind %s", results[1], kindInternal)
	}
}

func TestOnlyTheVerifierMayShutDown(t *testing.T) {
	s := testServer(t)
	results, _ := ask(t, s, roleAgent, 1, requestFrame(t, 1, map[string]any{"op": "shutdown"}))
	if want := `{"error":{"kind":"refused","message":"only the verifier may shut the environment down"}}`; results[1] != want {
		t.Errorf("agent: %s; want %s", results[1], want)
	}
	results, _ = ask(t, s, roleVerifier, 1, requestFrame(t, 1, map[string]any{"op": "shutdown"}))
	if want := `{"ok":{}}`; results[1] != want {
		t.Errorf("verifier: %s; want %s", results[1], want)
	}
	<-s.shutdown
}

func TestWhileTerminatingTheAgentIsRefusedAndTheVerifierServed(t *testing.T) {
	s := testServer(t)
	s.terminating.Store(true)
	stat := map[string]any{"op": "mkdir", "path": t.TempDir(), "mode": 0o755}
	results, _ := ask(t, s, roleAgent, 1, requestFrame(t, 1, stat))
	if want := `{"error":{"kind":"refused","message":"the environment is being stopped: mkdir is refused"}}`; results[1] != want {
		t.Errorf("agent: %s; want %s", results[1], want)
	}
	results, _ = ask(t, s, roleVerifier, 1, requestFrame(t, 1, stat))
	if want := `{"ok":{}}`; results[1] != want {
		t.Errorf("verifier: %s; want %s", results[1], want)
	}
}

func TestTooManyRequestsAtATimeAreRefused(t *testing.T) {
	s := testServer(t)
	var frames [][]byte
	for id := uint32(1); id <= maxRequests; id++ {
		frames = append(frames, requestFrame(t, id, map[string]any{"op": "write", "path": t.TempDir() + "/f", "size": 1, "mode": 0o644}))
	}
	frames = append(frames, requestFrame(t, maxRequests+1, map[string]any{"op": "processes"}))
	results, _ := ask(t, s, roleAgent, 1, frames...)
	if want := `{"error":{"kind":"too-many","message":"more than 256 requests at a time"}}`; results[maxRequests+1] != want {
		t.Errorf("%v; want %s", results, want)
	}
}

func TestBreachesEndTheConnection(t *testing.T) {
	open := requestFrame(t, 1, map[string]any{"op": "write", "path": t.TempDir() + "/f", "size": 1 << 30, "mode": 0o644})
	breaches := map[string][]byte{
		"id zero":               requestFrame(t, 0, map[string]any{"op": "processes"}),
		"id in use":             bytes.Join([][]byte{open, open}, nil),
		"a result from there":   appendFrame(nil, frameResult, 1, []byte("{}")),
		"data on stdout":        appendFrame(open, frameData, 1, []byte{streamOut}),
		"data without a stream": appendFrame(open, frameData, 1),
		"credit for stdin":      appendFrame(open, frameCredit, 1, []byte{streamIn, 0, 0, 0, 1}),
		"credit for nothing":    appendFrame(open, frameCredit, 1, []byte{streamOut, 0, 0, 0, 0}),
		"credit never used":     appendFrame(open, frameCredit, 1, []byte{streamOut, 0, 0, 0, 1}),
	}
	for name, frames := range breaches {
		t.Run(name, func(t *testing.T) {
			s := testServer(t)
			err := s.serve(newConn(roleAgent, &recorder{input: bytes.NewReader(frames)}))
			if err == nil || err == io.EOF {
				t.Fatalf("serve = %v; want a violation", err)
			}
		})
	}
}

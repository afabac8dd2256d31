BEGIN TRANSACTION;
CREATE TABLE entries (sequence INTEGER PRIMARY KEY, kind TEXT NOT NULL, run TEXT NOT NULL, time TEXT NOT NULL,
    text TEXT NOT NULL, nonce TEXT NOT NULL, previous TEXT NOT NULL, hash TEXT NOT NULL);
INSERT INTO "entries" VALUES(1,'init','','2026-11-24T12:37:38+00:00','{"adjacency": "replace_one", "budget": 0.5308138908598475, "delta": 1e-06, "epsilon": 1.0, "filter": "renyi", "items": [], "joint_epsilon": null, "key_sha256": "6a1c15a499e6e416672f7dc1429e3679821907f632900cacce33f9ab449de688", "name": "test", "num_records": null, "order": 22, "overflow": 2.6894142136972617e-08}','ced698582a91ad07656d8ec27e7c1d36','0000000000000000000000000000000000000000000000000000000000000000','de77a903eba786d8f27111b799074de86b7d263e7bab82acf277bb64d7b25b2c');
INSERT INTO "entries" VALUES(2,'reserve','ed56084124deb1c5','2026-11-24T12:37:38+00:00','{"cost": 0.0965116166164839, "events": [{"count": 1, "mechanism": "gaussian", "noise_multiplier": 21.351900811122267, "rate": 1.0}], "guarantee": {"accountant": "pld", "delta": 1e-06, "epsilon": 0.3700537791150684, "release": "trace"}, "label": "run 0", "overflow": 0.0}','ccbfd5c213ae96ddc4c7fcc99ef4d2c3','de77a903eba786d8f27111b799074de86b7d263e7bab82acf277bb64d7b25b2c','900562b2070a8a943816d8691547e289b53a7f8009e64fb0c9ab539b4a3ceb25');
INSERT INTO "entries" VALUES(3,'reserve','1c45681551b8ed11','2026-11-24T12:37:38+00:00','{"cost": 0.0965116166164839, "events": [{"count": 1, "mechanism": "gaussian", "noise_multiplier": 21.351900811122267, "rate": 1.0}], "guarantee": {"accountant": "pld", "delta": 1e-06, "epsilon": 0.3700537791150684, "release": "trace"}, "label": "run 1", "overflow": 0.0}','dbe09416fbd95291935dec5bb8017fae','900562b2070a8a943816d8691547e289b53a7f8009e64fb0c9ab539b4a3ceb25','2299e031e1b7e7bc3fea637ddc6a6e6a6c4acbb4a7af3254a38de682b6c5bfab');
INSERT INTO "entries" VALUES(4,'reserve','ee2a3da86393bd7f','2026-11-24T12:37:38+00:00','{"cost": 0.0965116166164839, "events": [{"count": 1, "mechanism": "gaussian", "noise_multiplier": 21.351900811122267, "rate": 1.0}], "guarantee": {"accountant": "pld", "delta": 1e-06, "epsilon": 0.3700537791150684, "release": "trace"}, "label": "run 2", "overflow": 0.0}','f175ba139034d90f6aa43a52292d1e85','2299e031e1b7e7bc3fea637ddc6a6e6a6c4acbb4a7af3254a38de682b6c5bfab','5120f3ea31d110dd0a0e8c7adc25f735bf4492f983f3299e9950735384a79f3c');
INSERT INTO "entries" VALUES(5,'reserve','6aa3ba5e1b28773f','2026-11-24T12:37:38+00:00','{"cost": 0.0965116166164839, "events": [{"count": 1, "mechanism": "gaussian", "noise_multiplier": 21.351900811122267, "rate": 1.0}], "guarantee": {"accountant": "pld", "delta": 1e-06, "epsilon": 0.3700537791150684, "release": "trace"}, "label": "run 3", "overflow": 0.0}','3238bc89bfc7f6e980ac744d4215404e','5120f3ea31d110dd0a0e8c7adc25f735bf4492f983f3299e9950735384a79f3c','ceb827801ca5ebe33229a5d7943913c4c9974e7d400c9c86580cb82dddd16bab');
CREATE TABLE head (id INTEGER PRIMARY KEY CHECK (id = 1), sequence INTEGER NOT NULL, hash TEXT NOT NULL);
INSERT INTO "head" VALUES(1,5,'ceb827801ca5ebe33229a5d7943913c4c9974e7d400c9c86580cb82dddd16bab');
CREATE TABLE secret (id INTEGER PRIMARY KEY CHECK (id = 1), key BLOB NOT NULL);
INSERT INTO "secret" VALUES(1,X'D627BE2E947C1ADA2B726E11A826FEE3859299ACB625763FB580486F42F8F56A');
CREATE TRIGGER entries_follow BEFORE INSERT ON entries
    WHEN NEW.sequence IS NOT (SELECT sequence + 1 FROM head) OR NEW.previous IS NOT (SELECT hash FROM head)
    BEGIN SELECT RAISE(ABORT, 'entries are appended in order'); END;
CREATE TRIGGER entries_stay BEFORE DELETE ON entries BEGIN SELECT RAISE(ABORT, 'entries are never removed'); END;
CREATE TRIGGER entries_keep BEFORE UPDATE ON entries BEGIN SELECT RAISE(ABORT, 'entries are never edited'); END;
CREATE TRIGGER head_single BEFORE INSERT ON head WHEN EXISTS (SELECT 1 FROM head)
    BEGIN SELECT RAISE(ABORT, 'there is one head'); END;
CREATE TRIGGER head_stays BEFORE DELETE ON head BEGIN SELECT RAISE(ABORT, 'the head is never removed'); END;
CREATE TRIGGER head_moves BEFORE UPDATE ON head
    WHEN NEW.sequence IS NOT OLD.sequence + 1
        OR NEW.hash IS NOT (SELECT hash FROM entries WHERE sequence = NEW.sequence)
    BEGIN SELECT RAISE(ABORT, 'the head moves with its entry'); END;
CREATE TRIGGER secret_single BEFORE INSERT ON secret WHEN EXISTS (SELECT 1 FROM secret)
    BEGIN SELECT RAISE(ABORT, 'there is one key'); END;
CREATE TRIGGER secret_stays BEFORE DELETE ON secret BEGIN SELECT RAISE(ABORT, 'the key is never removed'); END;
CREATE TRIGGER secret_keeps BEFORE UPDATE ON secret BEGIN SELECT RAISE(ABORT, 'the key is never edited'); END;
COMMIT;
